-- Takes out of the stage what an earlier batch loaded with the same body, and counts it.
WITH known AS (
    DELETE FROM batch_stage AS s
    USING event AS e
    WHERE e.source = %(source)s
        AND e.event_id = s.event_id
        AND e.body_sha256 = sha256(convert_to(s.body, 'UTF8'))
    RETURNING s.partner, s.currency, s.amount
)
SELECT
    k.partner,
    coalesce(k.currency, '') AS currency,
    count(*) AS count,
    coalesce(sum(k.amount * c.factor), 0) AS minor
FROM known AS k
LEFT JOIN unnest(%(currencies)s::text[], %(factors)s::numeric[]) AS c (code, factor) ON c.code = k.currency
GROUP BY 1, 2
