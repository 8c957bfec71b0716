-- Deliveries that are not over yet, locked; one that is over by then is none.
INSERT INTO chosen (event, partner, source, live, status, cause, currency, amount_minor)
SELECT d.event, d.partner, e.source, e.batch_id IS NULL, d.status, d.cause, e.currency, e.amount_minor
FROM delivery AS d
JOIN event AS e ON e.id = d.event
WHERE d.status IN ('held', 'pending', 'retrying')
--include part/filter
ORDER BY d.event, d.partner
FOR UPDATE OF d
