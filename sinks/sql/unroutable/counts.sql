-- How many there are, and how much, by where they come from and why.
SELECT e.source, e.event_type, u.reason, e.currency, count(*) AS count, sum(e.amount_minor)::numeric AS minor
FROM unrouted AS u
JOIN event AS e ON e.id = u.event
WHERE u.reason IS NOT NULL
GROUP BY e.source, e.event_type, u.reason, e.currency
ORDER BY count DESC, e.source, e.event_type
