-- The next live events that are to be routed anew, by number.
SELECT e.id, e.source, e.event_id, e.event_type, e.routing_key, e.target_uri, e.tenant, e.tags, e.content_type,
       e.body, e.body_sha256, e.trace_id, e.created_at, e.business_date, e.amount_minor, e.currency, e.order_key
FROM event AS e
WHERE e.id > %(after)s
  AND e.id IN (SELECT event FROM chosen WHERE live AND left_out IS NULL)
ORDER BY e.id
LIMIT %(limit)s
