-- Events that only Redis had so far. In the order of their ids, as intake writes them, or two could wait for each other.
INSERT INTO event (
    source, event_id, event_type, routing_key, target_uri, tenant, tags, content_type, body, body_sha256, trace_id,
    created_at, business_date, amount_minor, currency, order_key, version
)
SELECT source, event_id, event_type, routing_key, target_uri, tenant, tags::jsonb, content_type, body, body_sha256,
       trace_id, created_at, business_date, amount_minor, currency, order_key, version
FROM unnest(
    %(sources)s::text[], %(event_ids)s::text[], %(event_types)s::text[], %(routing_keys)s::text[],
    %(target_uris)s::text[], %(tenants)s::text[], %(tags)s::text[], %(content_types)s::text[], %(bodies)b::bytea[],
    %(hashes)b::bytea[], %(trace_ids)s::text[], %(created_ats)s::timestamptz[], %(business_dates)s::date[],
    %(amounts)s::bigint[], %(currencies)s::text[], %(order_keys)s::text[], %(versions)s::smallint[]
) AS new (
    source, event_id, event_type, routing_key, target_uri, tenant, tags, content_type, body, body_sha256, trace_id,
    created_at, business_date, amount_minor, currency, order_key, version
)
ORDER BY event_id, source
ON CONFLICT (event_id, source) DO NOTHING
RETURNING source, event_id, id
