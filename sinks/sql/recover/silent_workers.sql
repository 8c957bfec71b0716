-- Those that can no longer hand in; what they had may have been sent.
UPDATE worker SET ended_at = now()
WHERE ended_at IS NULL AND heartbeat_at <= now() - %(lease)s AND generation < %(generation)s
RETURNING id
