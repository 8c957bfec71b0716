INSERT INTO inbound_quarantine (shard, entry, data, error)
VALUES (%(shard)s, %(entry)s, %(data)b, %(error)s)
ON CONFLICT DO NOTHING
