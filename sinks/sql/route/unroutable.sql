-- Events that no route took, or one could not, in the order in which they came.
SELECT e.id, e.source, e.event_id, e.event_type, e.routing_key, e.target_uri, e.tenant, e.tags, e.content_type,
       e.body, e.body_sha256, e.trace_id, e.created_at, e.business_date, e.amount_minor, e.currency, e.order_key
FROM unrouted AS u
JOIN event AS e ON e.id = u.event
WHERE u.reason IS NOT NULL AND u.event > %(after)s
ORDER BY u.event
LIMIT %(limit)s
FOR UPDATE OF u
