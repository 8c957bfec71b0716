-- Takes a batch that nobody runs: new, failed, or left by an owner whose session or lease is gone.
-- A row that its last owner releases at this moment is waited for, and then not claimed.
UPDATE batch
SET state = 'running', lease_owner = %(owner)s, lease_until = now() + %(lease)s, failure = NULL
WHERE id = %(batch_id)s
    AND (state = 'failed'
         OR (state = 'running'
             AND (lease_owner IS NOT DISTINCT FROM %(last_owner)s::text)
             AND (%(alone)s::boolean OR lease_owner IS NULL OR lease_until IS NULL OR lease_until <= now())))
RETURNING id
