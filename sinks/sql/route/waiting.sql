-- Events that no router has dealt with for so long: Redis does not have them, or not soon enough. The oldest first.
SELECT e.id, e.source, e.event_id, e.event_type, e.routing_key, e.target_uri, e.tenant, e.tags, e.content_type,
       e.body, e.body_sha256, e.trace_id, e.created_at, e.business_date, e.amount_minor, e.currency, e.order_key
FROM unrouted AS u
JOIN event AS e ON e.id = u.event
WHERE u.reason IS NULL AND u.since <= now() - %(older_than)s
ORDER BY u.since
LIMIT %(limit)s
FOR UPDATE OF u SKIP LOCKED
