-- The source's own totals, counted apart from the rows that it hands over.
SELECT {partner} AS partner, {currency} AS currency, count(*) AS count, sum({amount}) AS amount
FROM (
{query}
) AS q
GROUP BY 1, 2
