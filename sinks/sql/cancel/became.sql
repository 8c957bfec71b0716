-- What became of one cancellation's deliveries that the partner may have.
SELECT d.status::text, e.source || ':' || e.event_id AS key, d.partner, e.amount_minor, e.currency, d.last_error
FROM cancelled AS c
JOIN delivery AS d ON d.event = c.event AND d.partner = c.partner
JOIN event AS e ON e.id = c.event
WHERE c.audit = %(audit)s AND d.status <> 'cancelled'
ORDER BY d.status, c.event, c.partner
