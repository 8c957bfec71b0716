-- Dead deliveries, locked; one that is no longer dead by then is none. A cause is there exactly while it is dead, so
-- delivery_dead finds them.
INSERT INTO chosen (event, partner, source, live, status, cause, currency, amount_minor)
SELECT d.event, d.partner, e.source, e.batch_id IS NULL, d.status, d.cause, e.currency, e.amount_minor
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
ORDER BY d.event, d.partner
FOR UPDATE OF d
