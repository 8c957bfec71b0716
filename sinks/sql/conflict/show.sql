-- Both bodies: what was accepted first, and what came later under the same id.
SELECT c.id, c.source, c.event_id, c.tenant, c.event_type, c.trace_id, c.at, c.settled_at, c.body,
       e.event_type AS first_event_type, e.trace_id AS first_trace_id, e.created_at AS first_at, e.body AS first_body
FROM conflict AS c
LEFT JOIN event AS e USING (source, event_id)
WHERE c.id = %(id)s
