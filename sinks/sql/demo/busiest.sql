-- Most sends in any second that ends with a send, by the workers' stamps: (t - 1 s, t], in microseconds.
SELECT partner, max(in_second) AS sends
FROM (
    SELECT partner,
           count(*) OVER (PARTITION BY partner ORDER BY sent_at
                          RANGE BETWEEN INTERVAL '999999 microseconds' PRECEDING AND CURRENT ROW) AS in_second
    FROM delivery_log
    WHERE sent_at IS NOT NULL
) AS counted
GROUP BY partner
