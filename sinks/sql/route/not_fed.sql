-- Redis would not have these: they wait here, and sweep hands them over.
UPDATE delivery AS d SET fed_generation = refused.instead
FROM unnest(%(events)s::bigint[], %(insteads)s::integer[]) AS refused (event, instead)
WHERE d.event = refused.event AND d.partner = %(partner)s AND d.status = 'pending'
  AND d.fed_generation = %(generation)s
