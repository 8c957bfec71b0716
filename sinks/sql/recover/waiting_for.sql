-- Workers that are alive and have not yet handed in everything under this generation. Asked again and again in one
-- transaction, in which now() stands still.
SELECT count(*) FROM worker
WHERE ended_at IS NULL AND heartbeat_at > clock_timestamp() - %(lease)s AND generation < %(generation)s
