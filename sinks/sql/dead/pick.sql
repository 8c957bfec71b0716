-- Dead deliveries, locked; one that is no longer dead by then is none. A cause is there exactly while it is dead, so
-- delivery_dead finds them.
INSERT INTO chosen (event, partner, source, live, status, cause, currency, amount_minor)
SELECT d.event, d.partner, e.source, e.batch_id IS NULL, d.status, d.cause, e.currency, e.amount_minor
FROM delivery AS d
JOIN event AS e ON e.id = d.event
WHERE d.cause IS NOT NULL AND d.status = 'dead'
--include part/filter
ORDER BY d.event, d.partner
FOR UPDATE OF d
