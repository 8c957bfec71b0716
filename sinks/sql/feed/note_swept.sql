-- After the hand-over: a crash before this sweeps them again, and Redis knows that it has them.
UPDATE delivery AS d
SET fed_generation = %(generation)s
FROM unnest(%(sources)s::text[], %(event_ids)s::text[]) AS swept (source, event_id)
JOIN event AS e USING (source, event_id)
WHERE d.event = e.id AND d.partner = %(partner)s AND d.status = 'retrying'
  AND (d.fed_generation IS NULL OR d.fed_generation < %(generation)s)
