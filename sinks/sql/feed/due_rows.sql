-- What is due and not in Redis in this generation: retries of batches, the longest waiting first; live deliveries of
-- each partner, as many as it has room for, those that Redis perhaps had before those that it never had.
WITH due AS (
    (
        SELECT d.event, d.partner, d.due_at
        FROM delivery AS d
        WHERE d.batch_id IS NOT NULL AND d.due_at <= %(now)s
          AND (d.fed_generation IS NULL OR d.fed_generation < %(generation)s)
          AND d.status = 'retrying' AND d.partner = ANY (%(partners)s)
        ORDER BY d.due_at
        LIMIT %(limit)s
    )
    UNION ALL
    SELECT live.event, live.partner, live.due_at
    FROM unnest(%(partners)s::text[], %(rooms)s::integer[]) AS partner (name, room)
    CROSS JOIN LATERAL (
        (
            SELECT d.event, d.partner, d.due_at
            FROM delivery AS d
            WHERE d.batch_id IS NULL AND d.partner = partner.name
              AND d.fed_generation < %(generation)s AND d.due_at <= %(now)s
              AND d.status IN ('pending', 'retrying')
            ORDER BY d.fed_generation, d.due_at
            LIMIT partner.room
        )
        UNION ALL
        (
            SELECT d.event, d.partner, d.due_at
            FROM delivery AS d
            WHERE d.batch_id IS NULL AND d.partner = partner.name
              AND d.fed_generation IS NULL AND d.due_at <= %(now)s
              AND d.status IN ('pending', 'retrying')
            ORDER BY d.fed_generation, d.due_at  -- all null, but only so it is the index's own order
            LIMIT partner.room
        )
        LIMIT partner.room
    ) AS live
    WHERE partner.room > 0
),
chosen AS (
    SELECT event, partner, due_at FROM due ORDER BY due_at LIMIT %(limit)s
)
SELECT e.id, e.source, e.event_id, e.event_type, e.routing_key, coalesce(r.target_uri, e.target_uri), e.tenant, e.tags,
       e.content_type, coalesce(r.body, e.body), e.trace_id, e.created_at, e.business_date, e.amount_minor,
       e.currency, e.order_key, d.partner, d.batch_id, d.row_number, d.attempts, d.unknowns, d.updated_at,
       d.status::text,
       d.possible_duplicate OR (d.attempts > 0 OR d.status = 'retrying') AND EXISTS (
           SELECT FROM delivery_log AS l
           WHERE l.source = e.source AND l.event_id = e.event_id AND l.partner = d.partner AND l.may_have_arrived
             AND (d.cleared_at IS NULL OR l.recorded_at > d.cleared_at)
       ),
       d.replayed_at, d.attempts_before, NULL::text[]
FROM chosen
JOIN delivery AS d USING (event, partner)
JOIN event AS e ON e.id = chosen.event
LEFT JOIN reshaped AS r ON r.event = chosen.event AND r.partner = chosen.partner
ORDER BY chosen.due_at
