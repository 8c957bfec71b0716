-- Cancelled while a send was under way that may have arrived: nobody may call that cancelled.
UPDATE delivery
SET status = 'dead', cause = %(unknown)s,
    attempts = greatest(delivery.attempts, stage.number - (NOT stage.counted)::integer),
    last_status_code = stage.status_code, last_error = stage.reason, updated_at = now()
FROM outcome_stage AS stage
JOIN event USING (source, event_id)
WHERE stage.may_have_arrived AND stage.state <> 'succeeded'
  AND delivery.event = event.id
  AND delivery.partner = stage.partner
  AND delivery.status = ANY (%(may_doubt)s::delivery_status[])
