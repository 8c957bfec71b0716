SELECT event.source, event.event_id, event.event_type, event.trace_id, event.created_at, event.business_date,
       event.amount_minor, event.currency, octet_length(event.body) AS bytes, delivery.partner,
       delivery.status::text, delivery.attempts, delivery.possible_duplicate, delivery.due_at, delivery.cause,
       delivery.last_error, delivery.batch_id, delivery.row_number, delivery.updated_at
FROM event JOIN delivery ON delivery.event = event.id
WHERE event.event_id = %(event_id)s OR event.source = %(source)s AND event.event_id = %(rest)s
ORDER BY event.source, delivery.partner
