-- Workers that should be alive by the record and have not been heard of for a lease.
SELECT id FROM worker WHERE ended_at IS NULL AND heartbeat_at <= now() - %(lease)s
