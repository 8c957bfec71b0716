-- Body hash and trace id of events that came before.
SELECT e.source, e.event_id, e.body_sha256, e.trace_id
FROM unnest(%(source)b::text[], %(event_id)b::text[]) AS k (source, event_id)
JOIN event AS e ON e.event_id = k.event_id AND e.source = k.source
