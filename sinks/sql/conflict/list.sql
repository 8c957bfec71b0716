SELECT id, source, event_id, event_type, tenant, trace_id, octet_length(body) AS bytes, at, settled_at
FROM conflict
WHERE settled_at IS NULL OR %(all)s
ORDER BY id
