-- What somebody found out: the partner has it, or does not.
UPDATE delivery AS d
SET status = CASE WHEN %(delivered)s THEN 'succeeded' ELSE 'dead' END::delivery_status,
    cause = CASE WHEN %(delivered)s THEN NULL ELSE %(not_delivered)s END,
    cleared_at = CASE WHEN %(delivered)s THEN d.cleared_at ELSE now() END,
    possible_duplicate = d.possible_duplicate AND %(delivered)s,
    last_error = %(said)s, updated_at = now()
FROM chosen
WHERE chosen.event = d.event AND chosen.partner = d.partner AND chosen.arrived
  AND d.status = ANY (%(may_confirm)s::delivery_status[])
RETURNING d.partner
