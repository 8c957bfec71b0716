-- Workers that are alive and have not yet handed in everything under this generation.
SELECT count(*) FROM worker
WHERE ended_at IS NULL AND heartbeat_at > now() - %(lease)s AND generation < %(generation)s
