UPDATE batch
SET
    state = 'failed',
    lease_owner = NULL,
    lease_until = NULL,
    snapshot_at = %(snapshot_at)s,
    failure = %(failure)s::jsonb
WHERE id = %(batch_id)s AND lease_owner = %(owner)s AND state = 'running'
