-- Dead deliveries in the order in which they came in. Not the bare column, or the whole of `delivery` would be walked
-- in its own order for a handful of dead.
SELECT e.source, e.event_id, d.partner, d.cause, d.last_error, d.last_status_code, d.attempts, d.possible_duplicate,
       e.event_type, e.created_at, d.updated_at AS dead_since, e.business_date, e.batch_id IS NULL AS live,
       e.amount_minor, e.currency, e.trace_id
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
ORDER BY d.event + 0, d.partner
LIMIT %(limit)s
