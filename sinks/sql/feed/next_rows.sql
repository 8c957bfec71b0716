-- A batch's next rows in their order. `may_have_arrived`: an earlier attempt may have reached the partner.
SELECT e.id, e.source, e.event_id, e.event_type, e.routing_key, e.target_uri, e.tenant, e.tags, e.content_type,
       e.body, e.trace_id, e.created_at, e.business_date, e.amount_minor, e.currency, e.order_key,
       d.partner, d.batch_id, d.row_number, d.attempts, d.unknowns, d.updated_at, d.status::text,
       d.possible_duplicate
       OR d.attempts > 0 AND EXISTS (
           SELECT FROM delivery_log AS l
           WHERE l.source = e.source AND l.event_id = e.event_id AND l.partner = d.partner AND l.may_have_arrived
       )
FROM delivery AS d
JOIN event AS e ON e.id = d.event
WHERE d.batch_id = %(batch)s AND d.partner = %(partner)s AND d.row_number > %(after)s AND d.status = 'pending'
ORDER BY d.row_number
LIMIT %(limit)s
