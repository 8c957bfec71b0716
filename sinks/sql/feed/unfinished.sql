-- Batches of which something may still have to be handed to Redis in this generation, a partner's oldest first.
SELECT bp.partner, bp.batch_id
FROM batch_partner AS bp
JOIN batch AS b ON b.id = bp.batch_id
WHERE b.state = 'released'
  AND bp.partner = ANY (%(partners)s)
  AND NOT bp.finished
  AND bp.fed_complete IS DISTINCT FROM %(generation)s
ORDER BY bp.partner, bp.batch_id
