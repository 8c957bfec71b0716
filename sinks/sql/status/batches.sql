SELECT id, job, business_date, revision, state::text, loaded_count, already_known, lease_until < now() AS lease_over,
       created_at, released_at, failure
FROM batch
ORDER BY id DESC
LIMIT 20
