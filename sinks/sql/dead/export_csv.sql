-- Dead deliveries in the order in which they came in, for a spreadsheet: text quoted and guarded, numbers bare.
COPY (
WITH item AS (
    SELECT e.source || ':' || e.event_id AS key, d.partner, d.cause, coalesce(d.last_error, '') AS reason,
           d.last_status_code, d.attempts, CASE WHEN d.possible_duplicate THEN 'yes' ELSE 'no' END AS possible_duplicate,
           e.event_type, CASE WHEN e.batch_id IS NULL THEN 'live' ELSE 'batch' END AS lane, e.business_date,
           e.amount_minor * money.unit AS amount, coalesce(e.currency, '') AS currency, e.trace_id,
           to_char(e.created_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"') AS created_at,
           to_char(d.updated_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"') AS dead_since, d.event
    FROM delivery AS d
    JOIN event AS e ON e.id = d.event
    LEFT JOIN unnest(%(currencies)s::text[], %(units)s::numeric[]) AS money (currency, unit)
        ON money.currency = coalesce(e.currency, '')
    WHERE d.cause IS NOT NULL AND d.status = 'dead'
--include part/filter
)
SELECT
    regexp_replace(key, %(formula)s, '''\&') AS key,
    regexp_replace(partner, %(formula)s, '''\&') AS partner,
    cause,
    regexp_replace(regexp_replace(reason, %(inner)s, '\1''\2', 'g'), %(formula)s, '''\&') AS reason,
    last_status_code, attempts, possible_duplicate,
    regexp_replace(event_type, %(formula)s, '''\&') AS event_type,
    lane, business_date, amount, currency,
    regexp_replace(trace_id, %(formula)s, '''\&') AS trace_id,
    created_at, dead_since
FROM item
ORDER BY event, item.partner
) TO STDOUT (FORMAT csv, HEADER true, FORCE_QUOTE (
    key, partner, cause, reason, possible_duplicate, event_type, lane, currency, trace_id, created_at, dead_since
))
