-- Retries that are due and wait in no delay stream of this generation, the longest waiting first.
SELECT e.source, e.event_id, e.event_type, e.routing_key, e.target_uri, e.tenant, e.tags, e.content_type,
       e.body, e.trace_id, e.created_at, e.business_date, e.amount_minor, e.currency, e.order_key,
       d.partner, d.batch_id, d.row_number, d.attempts, d.unknowns, d.updated_at, d.status::text,
       d.possible_duplicate OR EXISTS (
           SELECT FROM delivery_log AS l
           WHERE l.source = e.source AND l.event_id = e.event_id AND l.partner = d.partner AND l.may_have_arrived
       )
FROM delivery AS d
JOIN event AS e ON e.id = d.event
WHERE d.status = 'retrying' AND d.due_at <= %(now)s AND d.partner = ANY (%(partners)s)
  AND (d.fed_generation IS NULL OR d.fed_generation < %(generation)s)
ORDER BY d.due_at
LIMIT %(limit)s
