-- An event's deliveries; one row without a partner where there is none yet.
SELECT event.source, event.event_id, event.event_type, event.trace_id, event.created_at, event.business_date,
       event.amount_minor, event.currency, octet_length(event.body) AS bytes, delivery.partner,
       coalesce(delivery.status::text, CASE WHEN unrouted.reason IS NULL THEN 'waiting' ELSE 'unroutable' END) AS status,
       coalesce(delivery.attempts, 0) AS attempts, coalesce(delivery.possible_duplicate, false) AS possible_duplicate,
       CASE WHEN delivery.status = 'retrying' THEN delivery.due_at END AS due_at, delivery.cause,
       delivery.last_error, delivery.batch_id, delivery.row_number,
       coalesce(delivery.updated_at, unrouted.since, event.created_at) AS updated_at,
       unrouted.reason, coalesce(reshaped.target_uri, event.target_uri) AS target_uri,
       reshaped.body IS NOT NULL AS reshaped, 'record' AS known_to,
       (SELECT count(*) FROM conflict
        WHERE conflict.source = event.source AND conflict.event_id = event.event_id) AS conflicts
FROM event
LEFT JOIN delivery ON delivery.event = event.id
LEFT JOIN unrouted ON unrouted.event = event.id
LEFT JOIN reshaped ON reshaped.event = event.id AND reshaped.partner = delivery.partner
WHERE event.event_id = %(event_id)s OR event.source = %(source)s AND event.event_id = %(rest)s
ORDER BY event.source, delivery.partner
