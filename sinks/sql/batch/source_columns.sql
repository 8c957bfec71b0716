-- The columns of a job's query, without a row of it.
SELECT *
FROM (
{query}
) AS q
LIMIT 0
