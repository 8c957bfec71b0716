-- Deliveries of events that were routed before and that some router meant to hand to Redis in this generation.
SELECT d.event, d.partner, d.attempts, d.unknowns, d.possible_duplicate, r.target_uri, r.body
FROM delivery AS d
LEFT JOIN reshaped AS r USING (event, partner)
WHERE d.event = ANY (%(events)s) AND d.status = 'pending' AND d.fed_generation = %(generation)s
ORDER BY d.event, d.partner
