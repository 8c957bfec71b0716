-- Events and deliveries of everything staged, counted from the rows written. A known id is a unique violation.
-- The stage is read in the order of its ids, so both primary keys grow at their right edge.
WITH written AS (
    INSERT INTO event (
        id, source, event_id, event_type, body, body_sha256, trace_id, created_at,
        batch_id, business_date, amount_minor, currency, order_key
    )
    OVERRIDING SYSTEM VALUE
    SELECT
        s.id,
        %(source)s,
        s.event_id,
        %(event_type)s,
        convert_to(s.body, 'UTF8'),
        sha256(convert_to(s.body, 'UTF8')),
        replace(gen_random_uuid()::text, '-', ''),
        %(created_at)s,
        %(batch_id)s,
        %(business_date)s,
        s.amount * c.factor,
        s.currency,
        s.order_key
    FROM batch_stage AS s
    LEFT JOIN unnest(%(currencies)s::text[], %(factors)s::numeric[]) AS c (code, factor) ON c.code = s.currency
    RETURNING id, currency, amount_minor
),
deliveries AS (
    INSERT INTO delivery (event, partner, batch_id, row_number, updated_at)
    SELECT
        id,
        partner,
        %(batch_id)s,
        row_number() OVER (PARTITION BY partner ORDER BY id),
        %(created_at)s
    FROM batch_stage
    RETURNING event, partner
)
SELECT
    d.partner,
    coalesce(w.currency, '') AS currency,
    count(*) AS count,
    coalesce(sum(w.amount_minor), 0) AS minor
FROM deliveries AS d
JOIN written AS w ON w.id = d.event
GROUP BY 1, 2
