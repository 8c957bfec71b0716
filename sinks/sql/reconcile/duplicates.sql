-- Events of one business date that have more than one delivery: a batch row has exactly one.
SELECT e.batch_id, e.source || ':' || e.event_id AS key, count(*) AS deliveries
FROM batch AS b
JOIN event AS e ON e.batch_id = b.id
JOIN delivery AS d ON d.event = e.id
WHERE b.business_date = %(business_date)s
GROUP BY e.id
HAVING count(*) > 1
ORDER BY e.id
LIMIT 20;
