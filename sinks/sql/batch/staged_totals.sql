SELECT
    s.partner,
    coalesce(s.currency, '') AS currency,
    count(*) AS count,
    coalesce(sum(s.amount * c.factor), 0) AS minor
FROM batch_stage AS s
LEFT JOIN unnest(%(currencies)s::text[], %(factors)s::numeric[]) AS c (code, factor) ON c.code = s.currency
GROUP BY 1, 2
