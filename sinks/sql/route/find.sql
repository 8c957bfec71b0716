-- Which of these events the record has, and which of them wait for a router. Those are locked: who comes second for
-- one finds it routed. Each step by a key, for many events may wait.
WITH found AS MATERIALIZED (
    SELECT e.source, e.event_id, e.id, e.body_sha256, e.trace_id, e.created_at
    FROM unnest(%(sources)s::text[], %(event_ids)s::text[]) AS given (source, event_id)
    JOIN event AS e USING (source, event_id)
),
locked AS MATERIALIZED (
    SELECT u.event, u.reason
    FROM unrouted AS u
    WHERE u.event = ANY (ARRAY (SELECT id FROM found))
    ORDER BY u.event
    FOR UPDATE OF u
)
SELECT source, event_id, id, body_sha256, trace_id, created_at, id IN (SELECT event FROM locked WHERE reason IS NULL)
FROM found
