-- Where the items of one business date are now: count and sum in minor units, disjoint by category.
-- An item belongs to the batch that loaded it first: event.batch_id never changes.
SELECT
    e.batch_id,
    d.partner,
    coalesce(e.currency, '') AS currency,
    CASE
        WHEN d.status = 'succeeded' THEN 'delivered'
        WHEN d.status = 'retrying' THEN 'retrying'
        WHEN d.status = 'cancelled' THEN 'cancelled'
        WHEN d.status = 'dead' AND d.cause = %(unknown)s THEN 'unknown'
        WHEN d.status = 'dead' THEN 'dead'
        ELSE 'open'
    END AS category,
    d.possible_duplicate,
    count(*) AS count,
    coalesce(sum(e.amount_minor), 0) AS minor
FROM batch AS b
JOIN event AS e ON e.batch_id = b.id
JOIN delivery AS d ON d.event = e.id
WHERE b.business_date = %(business_date)s
GROUP BY 1, 2, 3, 4, 5
ORDER BY 1, 2, 3, 4, 5;
