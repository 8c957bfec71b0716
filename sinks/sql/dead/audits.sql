-- What operators did to one delivery: its cancellation, the replays in whose batches it was sent, what they found out.
SELECT a.at, a.who, a.action, a.why, a.detail::text
FROM audit AS a
WHERE a.id IN (
    SELECT c.audit FROM cancelled AS c JOIN event AS e ON e.id = c.event
    WHERE e.source = %(source)s AND e.event_id = %(event_id)s AND c.partner = %(partner)s
) OR a.action = 'dead replay' AND (a.detail ->> 'batch')::bigint IN (
    SELECT d.batch_id FROM delivery AS d JOIN event AS e ON e.id = d.event
    WHERE e.source = %(source)s AND e.event_id = %(event_id)s AND d.partner = %(partner)s
    UNION
    SELECT substring(l.attempt_id FROM '/batch:([0-9]+)[:/]')::bigint FROM delivery_log AS l
    WHERE l.source = %(source)s AND l.event_id = %(event_id)s AND l.partner = %(partner)s
) OR a.action = 'dead resolve' AND a.detail -> 'filter' ->> 'key' = %(source)s || ':' || %(event_id)s
    AND a.detail -> 'partners' ? %(partner)s
ORDER BY a.id
