UPDATE batch
SET lease_until = now() + %(lease)s
WHERE id = %(batch_id)s AND lease_owner = %(owner)s AND state = 'running'
RETURNING id
