-- Before the hand-over: Redis may have these from now on, which counts after a loss; and sweep still finds them.
UPDATE delivery AS d
SET fed_generation = -%(generation)s
FROM unnest(%(events)s::bigint[], %(partners)s::text[]) AS swept (event, partner)
WHERE d.event = swept.event AND d.partner = swept.partner AND d.status = 'pending' AND d.batch_id IS NULL
  AND (d.fed_generation IS NULL OR d.fed_generation < %(generation)s AND d.fed_generation <> -%(generation)s)
