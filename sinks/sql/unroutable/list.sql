SELECT e.source, e.event_id, e.event_type, e.routing_key, e.tenant, e.trace_id, e.created_at AS accepted_at,
       e.amount_minor, e.currency, u.reason
FROM unrouted AS u
JOIN event AS e ON e.id = u.event
WHERE u.reason IS NOT NULL
ORDER BY u.event
LIMIT %(limit)s
