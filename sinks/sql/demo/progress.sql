-- Where every delivery is, per partner. `sends` are attempts whose outcome is recorded.
SELECT partner,
       count(*)                                              AS orders,
       count(*) FILTER (WHERE status = 'succeeded')          AS delivered,
       count(*) FILTER (WHERE status = 'retrying')           AS retrying,
       count(*) FILTER (WHERE status = 'dead')               AS dead,
       count(*) FILTER (WHERE status IN ('pending', 'held')) AS pending,
       sum(attempts)::bigint                                 AS sends
FROM delivery
GROUP BY partner
