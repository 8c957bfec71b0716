-- How far every partner's outcome streams are recorded; `current` where Redis is to carry that generation now.
SELECT o.partner, o.tenant, o.generation, o.last, o.counted,
       o.generation = g.number AND g.state = 'open' AS current
FROM outcome_offset AS o
CROSS JOIN generation AS g
ORDER BY o.generation, o.partner
