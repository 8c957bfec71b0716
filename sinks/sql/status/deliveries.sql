-- What the record holds per partner; deliveries that are done count by batch, not by scanning history twice.
SELECT partner,
       count(*) FILTER (WHERE status IN ('pending', 'held'))  AS pending,
       count(*) FILTER (WHERE status = 'retrying')            AS retrying,
       count(*) FILTER (WHERE status = 'succeeded')           AS succeeded,
       count(*) FILTER (WHERE status = 'dead')                AS dead,
       count(*) FILTER (WHERE status = 'cancelled')           AS cancelled,
       max(updated_at) FILTER (WHERE attempts > 0)            AS last_progress,
       count(*) FILTER (WHERE batch_id IS NULL AND status IN ('pending', 'retrying')) AS live,
       min(due_at) FILTER (WHERE batch_id IS NULL AND status = 'pending')             AS live_since
FROM delivery
GROUP BY partner
ORDER BY partner
