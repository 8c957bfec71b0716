-- Whatever became of a delivery: a send that may have been the second one flags it, also where its outcome came late
-- and changes nothing else.
UPDATE delivery
SET possible_duplicate = true, updated_at = now()
FROM outcome_stage AS stage
JOIN event USING (source, event_id)
WHERE stage.possible_duplicate
  AND delivery.event = event.id
  AND delivery.partner = stage.partner
  AND NOT delivery.possible_duplicate
