-- Cancelled says that the partner does not have it; what may have arrived is dead, and unknown.
UPDATE delivery AS d
SET status = CASE WHEN chosen.arrived THEN 'dead' ELSE 'cancelled' END::delivery_status,
    cause = CASE WHEN chosen.arrived THEN %(unknown)s END,
    last_error = CASE WHEN chosen.arrived THEN 'an earlier send may have arrived; ' ELSE '' END || %(said)s,
    due_at = NULL, updated_at = now()
FROM chosen
WHERE chosen.left_out IS NULL AND d.event = chosen.event AND d.partner = chosen.partner
  AND d.status = ANY (%(may_cancel)s::delivery_status[])
