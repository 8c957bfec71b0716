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
--include part/filter
)
SELECT row_to_json(line)
FROM (
    SELECT key, partner, cause, reason, last_status_code, attempts, possible_duplicate, event_type, lane, business_date,
           amount::text AS amount, currency, trace_id, created_at, dead_since, body_base64
    FROM item
    ORDER BY event, partner
) AS line
) TO STDOUT (FORMAT csv, QUOTE E'\x01', DELIMITER E'\x02')
