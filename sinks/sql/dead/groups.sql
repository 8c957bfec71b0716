-- Dead deliveries by one of three names, the largest group first; counts, and sums where there are amounts.
SELECT CASE %(by)s::text WHEN 'cause' THEN d.cause WHEN 'partner' THEN d.partner ELSE e.source END AS name,
       e.currency, count(*) AS count, sum(e.amount_minor) AS minor, min(e.created_at) AS oldest
FROM delivery AS d
JOIN event AS e ON e.id = d.event
WHERE d.cause IS NOT NULL AND d.status = 'dead'
  AND (%(partner)s::text IS NULL OR d.partner = %(partner)s)
  AND (%(cause)s::text IS NULL OR d.cause = %(cause)s)
  AND (%(source)s::text IS NULL OR e.source = %(source)s)
  AND (%(event_id)s::text IS NULL OR e.event_id = %(event_id)s)
  AND (%(job)s::text IS NULL OR e.source = %(job)s AND e.batch_id IS NOT NULL)
  AND (%(day)s::date IS NULL OR coalesce(e.business_date, (e.created_at AT TIME ZONE 'UTC')::date) = %(day)s)
  AND (%(before)s::timestamptz IS NULL OR e.created_at < %(before)s)
  AND (%(currency)s::text IS NULL OR e.currency = %(currency)s)
  AND (%(least)s::bigint IS NULL OR e.amount_minor >= %(least)s)
  AND (%(most)s::bigint IS NULL OR e.amount_minor <= %(most)s)
  AND (%(batch)s::boolean IS NULL OR (e.batch_id IS NOT NULL) = %(batch)s)
GROUP BY 1, 2
ORDER BY 3 DESC, 1, 2
