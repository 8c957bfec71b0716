-- Deliveries beside the batches' order that Redis of this generation does not have, and how long the oldest waits: of
-- each partner the live ones, by the two ranges of delivery_live_due, and retries of batches, by those of delivery_due.
WITH unfed AS (
    SELECT live.partner, 'live' AS lane, live.status, live.due_at
    FROM unnest(%(partners)s::text[]) AS wanted (name)
    CROSS JOIN LATERAL (
        (SELECT d.partner, d.status, d.due_at FROM delivery AS d
         WHERE d.due_at IS NOT NULL AND d.batch_id IS NULL AND d.partner = wanted.name AND d.fed_generation IS NULL
         ORDER BY d.due_at
         LIMIT %(limit)s)
        UNION ALL
        (SELECT d.partner, d.status, d.due_at FROM delivery AS d
         WHERE d.due_at IS NOT NULL AND d.batch_id IS NULL AND d.partner = wanted.name
           AND d.fed_generation < (SELECT number FROM generation)
         LIMIT %(limit)s)
    ) AS live
    UNION ALL
    (SELECT partner, 'batch', status, due_at FROM delivery
     WHERE due_at IS NOT NULL AND batch_id IS NOT NULL AND fed_generation IS NULL
     LIMIT %(limit)s)
    UNION ALL
    (SELECT partner, 'batch', status, due_at FROM delivery
     WHERE due_at IS NOT NULL AND batch_id IS NOT NULL AND fed_generation < (SELECT number FROM generation)
     LIMIT %(limit)s)
)
SELECT partner, lane, count(*),
       -- What waits for its time is as old as nothing.
       greatest(extract(epoch FROM now() - min(due_at)), 0)::double precision
FROM unfed
WHERE status IN ('pending', 'retrying') AND partner = ANY (%(partners)s)
GROUP BY partner, lane
