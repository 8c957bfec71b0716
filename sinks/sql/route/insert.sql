-- Events that only Redis had so far.
--include part/insert_events
RETURNING source, event_id, id
