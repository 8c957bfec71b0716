-- Why orders were not delivered, and one order of each reason.
SELECT partner, coalesce(last_error, '') AS reason, count(*) AS count, min(event.source || ':' || event.event_id) AS example
FROM delivery JOIN event ON event.id = delivery.event
WHERE status = 'dead'
GROUP BY partner, reason
ORDER BY partner, reason
