-- Dead deliveries in the order in which they came in. Not the bare column, or the whole of `delivery` would be walked
-- in its own order for a handful of dead.
SELECT e.source, e.event_id, d.partner, d.cause, d.last_error, d.last_status_code, d.attempts, d.possible_duplicate,
       e.event_type, e.created_at, d.updated_at AS dead_since, e.business_date, e.batch_id IS NULL AS live,
       e.amount_minor, e.currency, e.trace_id
FROM delivery AS d
JOIN event AS e ON e.id = d.event
WHERE d.cause IS NOT NULL AND d.status = 'dead'
--include part/filter
ORDER BY d.event + 0, d.partner
LIMIT %(limit)s
