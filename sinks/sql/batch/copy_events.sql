COPY event (
    id, trace_id, source, event_type, created_at, batch_id, business_date,
    event_id, amount_minor, currency, order_key, body, body_sha256
) FROM STDIN
