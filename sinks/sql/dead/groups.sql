-- Dead deliveries by one of three names, the largest group first; counts, and sums where there are amounts.
SELECT CASE %(by)s::text WHEN 'cause' THEN d.cause WHEN 'partner' THEN d.partner ELSE e.source END AS name,
       e.currency, count(*) AS count, sum(e.amount_minor) AS minor, min(e.created_at) AS oldest
FROM delivery AS d
JOIN event AS e ON e.id = d.event
WHERE d.cause IS NOT NULL AND d.status = 'dead'
--include part/filter
GROUP BY 1, 2
ORDER BY 3 DESC, 1, 2
