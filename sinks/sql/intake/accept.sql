-- Events that came in together and are not known yet, each with its place in the router's list; answers which.
-- The rows come sorted by event id, so that two of these can't wait for each other.
WITH written AS (
    INSERT INTO event (
        source, event_id, event_type, routing_key, target_uri, tenant, tags, content_type, body, body_sha256,
        trace_id, created_at, business_date, amount_minor, currency, order_key, version
    )
    SELECT source, event_id, event_type, routing_key, target_uri, tenant, tags::jsonb, content_type, body,
           body_sha256, trace_id, created_at, business_date, amount_minor, currency, order_key, version
    FROM unnest(
        %(source)b::text[], %(event_id)b::text[], %(event_type)b::text[], %(routing_key)b::text[],
        %(target_uri)b::text[], %(tenant)b::text[], %(tags)b::text[], %(content_type)b::text[],
        %(body)b::bytea[], %(body_sha256)b::bytea[], %(trace_id)b::text[], %(created_at)b::timestamptz[],
        %(business_date)b::date[], %(amount_minor)b::bigint[], %(currency)b::text[], %(order_key)b::text[],
        %(version)b::smallint[]
    ) AS t (
        source, event_id, event_type, routing_key, target_uri, tenant, tags, content_type, body, body_sha256,
        trace_id, created_at, business_date, amount_minor, currency, order_key, version
    )
    ON CONFLICT (event_id, source) DO NOTHING
    RETURNING id, source, event_id
),
waiting AS (
    INSERT INTO unrouted (event) SELECT id FROM written
)
SELECT source, event_id FROM written
