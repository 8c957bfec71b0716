-- Deliveries beside the batches' order that Redis of this generation does not have, and how long the oldest waits:
-- of each partner the live ones, and retries of batches. Each range is read in its index's order and up to a limit:
-- what is behind by a million costs as little as what is behind by ten thousand.
SELECT wanted.partner, 'live', count(*), greatest(extract(epoch FROM now() - min(live.due_at)), 0)::double precision
FROM unnest(%(partners)s::text[]) AS wanted (partner)
CROSS JOIN LATERAL (
    (SELECT d.due_at FROM delivery AS d
     WHERE d.due_at IS NOT NULL AND d.batch_id IS NULL AND d.partner = wanted.partner AND d.fed_generation IS NULL
     ORDER BY d.fed_generation, d.due_at
     LIMIT %(limit)s)
    UNION ALL
    (SELECT d.due_at FROM delivery AS d
     WHERE d.due_at IS NOT NULL AND d.batch_id IS NULL AND d.partner = wanted.partner
       AND d.fed_generation < (SELECT number FROM generation)
     ORDER BY d.fed_generation, d.due_at
     LIMIT %(limit)s)
) AS live
GROUP BY wanted.partner
UNION ALL
-- What is not due yet is as old as nothing: it waits on purpose.
SELECT returns.partner, 'batch', count(*),
       greatest(extract(epoch FROM now() - min(returns.due_at)), 0)::double precision
FROM (
    (SELECT d.partner, d.due_at FROM delivery AS d
     WHERE d.due_at IS NOT NULL AND d.batch_id IS NOT NULL AND d.fed_generation IS NULL
     ORDER BY d.fed_generation, d.due_at
     LIMIT %(limit)s)
    UNION ALL
    (SELECT d.partner, d.due_at FROM delivery AS d
     WHERE d.due_at IS NOT NULL AND d.batch_id IS NOT NULL AND d.fed_generation < (SELECT number FROM generation)
     ORDER BY d.fed_generation, d.due_at
     LIMIT %(limit)s)
) AS returns
WHERE returns.partner = ANY (%(partners)s)
GROUP BY returns.partner
