-- Partners of whom something is still to be told; with `audit`, of one cancellation.
SELECT partner, count(*) FROM cancelled
WHERE NOT told AND (%(audit)s::bigint IS NULL OR audit = %(audit)s)
GROUP BY partner
ORDER BY partner
