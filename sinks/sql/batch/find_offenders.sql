-- Rows that cannot become events, by their place in the query's result, each with its first reason.
WITH numbered AS (
    SELECT
        s.*,
        row_number() OVER (ORDER BY s.id) AS place,
        count(*) OVER (PARTITION BY s.event_id) AS copies
    FROM batch_stage AS s
),
judged AS (
    SELECT
        n.place,
        n.event_id,
        CASE
            WHEN n.body IS NULL THEN 'holds text that is not UTF-8'
            WHEN n.event_id IS NULL THEN 'a column of its id is null'
            WHEN n.event_id !~ %(id_pattern)s OR length(n.event_id) > 128
                THEN 'id must be 1 to 128 of A-Z a-z 0-9 . _ - in each column'
            WHEN n.copies > 1 THEN format('%%s rows have this id', n.copies)
            WHEN e.body_sha256 <> sha256(convert_to(n.body, 'UTF8'))
                THEN format('id is already known with another body, from batch %%s', coalesce(e.batch_id::text, '-'))
            WHEN n.partner IS NULL THEN 'partner is null'
            WHEN NOT n.partner = ANY (%(partners)s::text[]) THEN format('partner %%s is not configured', n.partner)
            WHEN NOT %(has_amount)s::boolean THEN NULL
            WHEN n.currency IS NULL THEN 'currency is null'
            WHEN c.code IS NULL THEN format('currency %%s is not an ISO 4217 code with a minor unit', n.currency)
            WHEN n.amount IS NULL THEN 'amount is null'
            WHEN min_scale(n.amount) IS NULL THEN format('amount is %%s', n.amount)
            WHEN min_scale(n.amount) > c.decimals
                THEN format('amount %%s has more than the %%s decimals of %%s', n.amount, c.decimals, n.currency)
            WHEN n.amount <= 0 THEN format('amount %%s is not above zero', n.amount)
            WHEN n.amount * c.factor > 9223372036854775807
                THEN format('amount %%s is beyond what can be stored', n.amount)
        END AS reason
    FROM numbered AS n
    LEFT JOIN event AS e ON e.source = %(source)s AND e.event_id = n.event_id
    LEFT JOIN unnest(%(currencies)s::text[], %(decimals)s::integer[], %(factors)s::numeric[])
        AS c (code, decimals, factor) ON c.code = n.currency
)
SELECT place AS row, event_id, reason, count(*) OVER () AS total
FROM judged
WHERE reason IS NOT NULL
ORDER BY place
LIMIT %(limit)s
