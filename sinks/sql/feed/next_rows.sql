-- A batch's next rows in their order; the flag: an earlier attempt may have reached the partner. One that was replayed
-- may be a live event with what its route made of it, and comes with what ended it before.
SELECT e.id, e.source, e.event_id, e.event_type, e.routing_key, coalesce(r.target_uri, e.target_uri), e.tenant, e.tags,
       e.content_type, coalesce(r.body, e.body), e.trace_id, e.created_at, e.business_date, e.amount_minor, e.currency, e.order_key,
       d.partner, d.batch_id, d.row_number, d.attempts, d.unknowns, d.updated_at, d.status::text,
       d.possible_duplicate
       OR (d.attempts > 0 OR d.replayed_at IS NOT NULL) AND EXISTS (
           SELECT FROM delivery_log AS l
           WHERE l.source = e.source AND l.event_id = e.event_id AND l.partner = d.partner AND l.may_have_arrived
             AND (d.cleared_at IS NULL OR l.recorded_at > d.cleared_at)
       ),
       d.replayed_at, d.attempts_before,
       CASE WHEN d.replayed_at IS NOT NULL THEN ARRAY(
           SELECT l.attempt_id FROM delivery_log AS l
           WHERE l.source = e.source AND l.event_id = e.event_id AND l.partner = d.partner
           UNION ALL
           SELECT 'cancel/' || c.audit FROM cancelled AS c WHERE c.event = d.event AND c.partner = d.partner
       ) END
FROM delivery AS d
JOIN event AS e ON e.id = d.event
LEFT JOIN reshaped AS r ON r.event = d.event AND r.partner = d.partner
WHERE d.batch_id = %(batch)s AND d.partner = %(partner)s AND d.row_number > %(after)s AND d.status = 'pending'
ORDER BY d.row_number
LIMIT %(limit)s
