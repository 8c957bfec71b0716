-- Every item of one business date, one CSV row each, in the order in which it was loaded. Quoting by COPY; text always
-- quoted, numbers never; a cell that a spreadsheet would run gets an apostrophe (pipelines/report.py has the patterns).
COPY (
WITH item AS (
    SELECT
        CASE
            WHEN d.status = 'succeeded' THEN 'delivered'
            WHEN d.status = 'retrying' THEN 'retrying'
            WHEN d.status = 'cancelled' THEN 'cancelled'
            WHEN d.status = 'dead' AND d.cause = %(unknown)s THEN 'unknown'
            WHEN d.status = 'dead' THEN 'dead'
            ELSE 'open'
        END AS category,
        CASE WHEN d.possible_duplicate THEN 'yes' ELSE 'no' END AS possible_duplicate,
        d.partner,
        e.amount_minor * money.unit AS amount,
        coalesce(e.currency, '') AS currency,
        e.source || ':' || e.event_id AS key,
        e.event_id,
        e.batch_id,
        d.row_number,
        d.attempts,
        d.last_status_code,
        coalesce(d.cause, '') AS cause,
        CASE
            WHEN d.status = 'succeeded' AND NOT d.possible_duplicate AND d.last_error IS NULL THEN ''
            -- A reader that splits at semicolons, tabs or line ends would meet a formula inside the text, too.
            ELSE regexp_replace(
                coalesce(d.last_error, CASE d.status
                    WHEN 'pending' THEN 'waiting to be sent'
                    WHEN 'held' THEN 'held back'
                    WHEN 'succeeded' THEN 'an earlier send may have arrived'
                    ELSE 'no reason recorded'
                END), %(inner)s, '\1''\2', 'g')
        END AS reason,
        e.created_at,
        d.updated_at,
        e.trace_id,
        e.id
    FROM batch AS b
    JOIN event AS e ON e.batch_id = b.id
    JOIN delivery AS d ON d.event = e.id
    -- The currency's smallest unit as numeric: the product has exactly the currency's decimals.
    LEFT JOIN unnest(%(currencies)s::text[], %(units)s::numeric[]) AS money (currency, unit)
        ON money.currency = coalesce(e.currency, '')
    WHERE b.business_date = %(business_date)s
)
SELECT
    category,
    possible_duplicate,
    regexp_replace(partner, %(formula)s, '''\&') AS partner,
    amount,
    currency,
    regexp_replace(key, %(formula)s, '''\&') AS key,
    regexp_replace(event_id, %(formula)s, '''\&') AS event_id,
    batch_id,
    row_number,
    attempts,
    last_status_code,
    cause,
    regexp_replace(reason, %(formula)s, '''\&') AS reason,
    to_char(created_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"') AS created_at,
    to_char(updated_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"') AS updated_at,
    regexp_replace(trace_id, %(formula)s, '''\&') AS trace_id
FROM item
ORDER BY item.id
) TO STDOUT (FORMAT csv, HEADER true, FORCE_QUOTE (
    category, possible_duplicate, partner, currency, key, event_id, batch_id, cause, reason,
    created_at, updated_at, trace_id
));
