UPDATE delivery SET possible_duplicate = true, updated_at = now()
FROM event, unnest(%(sources)s::text[], %(event_ids)s::text[]) AS suspect (source, event_id)
WHERE event.source = suspect.source AND event.event_id = suspect.event_id
  AND delivery.event = event.id AND delivery.partner = %(partner)s
  AND delivery.status IN ('pending', 'retrying')
