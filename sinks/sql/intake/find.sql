-- One event of one source; `reason` says why a route could not take it.
SELECT e.id, e.event_type, e.trace_id, e.created_at, u.reason
FROM event AS e
LEFT JOIN unrouted AS u ON u.event = e.id
WHERE e.event_id = %(event_id)s AND e.source = %(source)s
