SELECT coalesce(left_out, '') AS left_out, partner, coalesce(cause, status::text) AS cause, currency, count(*) AS count,
       sum(amount_minor) AS minor
FROM chosen
GROUP BY 1, 2, 3, 4
ORDER BY 1, 2, 3, 4
