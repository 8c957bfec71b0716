-- Live deliveries that were handed to Redis since then, or perhaps were, and have no outcome.
SELECT e.source, e.event_id
FROM delivery AS d
JOIN event AS e ON e.id = d.event
WHERE d.partner = %(partner)s AND d.batch_id IS NULL AND d.due_at IS NOT NULL AND d.status = 'pending'
  AND abs(d.fed_generation) >= %(since)s
