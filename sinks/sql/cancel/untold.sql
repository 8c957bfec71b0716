-- Held until they are told: nobody else tells of them meanwhile.
SELECT c.event, c.partner, c.audit, e.source || ':' || e.event_id
FROM cancelled AS c
JOIN event AS e ON e.id = c.event
WHERE NOT c.told AND c.partner = %(partner)s AND (c.event, c.partner) > (%(after)s, %(partner)s)
ORDER BY c.event
LIMIT %(limit)s
FOR UPDATE OF c SKIP LOCKED
