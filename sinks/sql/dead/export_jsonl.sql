-- The same as JSON, one object a line, and the body with it in base64. JSON holds no control characters, so these
-- quotes and delimiters never come up and each line is what row_to_json made.
COPY (
WITH item AS (
    SELECT e.source || ':' || e.event_id AS key, d.partner, d.cause, coalesce(d.last_error, '') AS reason,
           d.last_status_code, d.attempts, CASE WHEN d.possible_duplicate THEN 'yes' ELSE 'no' END AS possible_duplicate,
           e.event_type, CASE WHEN e.batch_id IS NULL THEN 'live' ELSE 'batch' END AS lane, e.business_date,
           e.amount_minor * money.unit AS amount, coalesce(e.currency, '') AS currency, e.trace_id,
           to_char(e.created_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"') AS created_at,
           to_char(d.updated_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"') AS dead_since, d.event,
           translate(encode(coalesce(r.body, e.body), 'base64'), E'\n', '') AS body_base64
    FROM delivery AS d
    JOIN event AS e ON e.id = d.event
    LEFT JOIN reshaped AS r ON r.event = d.event AND r.partner = d.partner
    LEFT JOIN unnest(%(currencies)s::text[], %(units)s::numeric[]) AS money (currency, unit)
        ON money.currency = coalesce(e.currency, '')
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
)
SELECT row_to_json(line)
FROM (
    SELECT key, partner, cause, reason, last_status_code, attempts, possible_duplicate, event_type, lane, business_date,
           amount::text AS amount, currency, trace_id, created_at, dead_since, body_base64
    FROM item
    ORDER BY event, partner
) AS line
) TO STDOUT (FORMAT csv, QUOTE E'\x01', DELIMITER E'\x02')
