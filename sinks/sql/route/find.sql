-- Which of these events the record has, and which of them wait for a router. Those are locked: who comes second for
-- one finds it routed.
WITH given AS (
    SELECT source, event_id FROM unnest(%(sources)s::text[], %(event_ids)s::text[]) AS g (source, event_id)
),
waiting AS MATERIALIZED (
    SELECT u.event
    FROM given
    JOIN event AS e USING (source, event_id)
    JOIN unrouted AS u ON u.event = e.id
    WHERE u.reason IS NULL
    ORDER BY u.event
    FOR UPDATE OF u
)
SELECT e.source, e.event_id, e.id, e.body_sha256, e.trace_id, e.created_at, waiting.event IS NOT NULL
FROM given
JOIN event AS e USING (source, event_id)
LEFT JOIN waiting ON waiting.event = e.id
