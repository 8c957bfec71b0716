INSERT INTO conflict (source, event_id, tenant, event_type, trace_id, body, body_sha256)
VALUES (%(source)s, %(event_id)s, %(tenant)s, %(event_type)s, %(trace_id)s, %(body)b, %(body_sha256)b)
ON CONFLICT (source, event_id, body_sha256) DO NOTHING
