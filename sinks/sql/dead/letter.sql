-- Everything that is needed to send one delivery, and to say what it is.
SELECT e.source, e.event_id, d.partner, d.status::text, d.cause, d.last_error, d.attempts, d.attempts_before,
       d.possible_duplicate, e.event_type, e.tenant, e.routing_key, coalesce(r.target_uri, e.target_uri) AS target_uri,
       e.content_type, coalesce(r.body, e.body) AS body, r.body IS NOT NULL AS reshaped,
       encode(sha256(coalesce(r.body, e.body)), 'hex') AS body_sha256, e.trace_id, e.created_at, d.updated_at,
       d.replayed_at, d.cleared_at, e.business_date, e.amount_minor, e.currency, e.order_key, e.tags,
       e.version AS schema_version, e.batch_id AS loaded_by_batch, d.batch_id, d.row_number
FROM event AS e
JOIN delivery AS d ON d.event = e.id
LEFT JOIN reshaped AS r ON r.event = d.event AND r.partner = d.partner
WHERE e.source = %(source)s AND e.event_id = %(event_id)s
  AND (%(partner)s::text IS NULL OR d.partner = %(partner)s)
ORDER BY d.partner
