-- The batch of a replay: released as it comes into being. The rows stay in the manifest of the batch that loaded them.
INSERT INTO batch (job, business_date, revision, state, expected_count, loaded_count, already_known, released_at)
SELECT %(job)s, %(day)s, 1 + coalesce((SELECT max(revision) FROM batch WHERE job = %(job)s AND business_date = %(day)s), 0),
       'released', count(*), count(*), 0, now()
FROM chosen
WHERE left_out IS NULL
HAVING count(*) > 0
RETURNING id, revision, loaded_count
