SELECT
    id, revision, state::text AS state, lease_owner,
    coalesce(lease_until > now(), false) AS leased,
    expected_count, loaded_count, already_known, ids_sha256, snapshot_at, failure
FROM batch
WHERE job = %(job)s AND business_date = %(business_date)s AND revision = %(revision)s
