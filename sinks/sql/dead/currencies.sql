SELECT DISTINCT e.currency FROM delivery AS d JOIN event AS e ON e.id = d.event
WHERE d.cause IS NOT NULL AND d.status = 'dead' AND e.currency IS NOT NULL
