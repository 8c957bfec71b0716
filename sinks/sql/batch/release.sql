-- Only the owner: one who was taken over while frozen finds no row and must roll back.
UPDATE batch
SET
    state = 'released',
    lease_owner = NULL,
    lease_until = NULL,
    expected_count = %(expected_count)s,
    loaded_count = %(loaded_count)s,
    already_known = %(already_known)s,
    ids_sha256 = %(ids_sha256)s,
    snapshot_at = %(snapshot_at)s,
    released_at = now()
WHERE id = %(batch_id)s AND lease_owner = %(owner)s AND state = 'running'
RETURNING id
