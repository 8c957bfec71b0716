-- Every row ready to be written: partner, id, minor units (null: not an exact amount above zero), currency,
-- order key, and the row as a JSON object with its hash. row_to_json keeps the zeros of a numeric and the order
-- of the columns; backslashes are doubled because bytea reads them as an escape. OFFSET 0: the JSON is made once.
COPY (
    SELECT
        r.partner,
        r.event_id,
        CASE
            WHEN r.amount > 0
                AND r.amount * r.factor <= 9223372036854775807
                AND r.amount * r.factor = trunc(r.amount * r.factor)
            THEN (r.amount * r.factor)::bigint
        END,
        r.currency,
        r.order_key,
        replace(r.body, '\', '\\'),
        sha256(convert_to(r.body, 'UTF8'))
    FROM (
        SELECT
            {partner} AS partner,
            {event_id} AS event_id,
            {amount} AS amount,
            {factor} AS factor,
            {currency} AS currency,
            {order_key} AS order_key,
            row_to_json(q)::text AS body
        FROM (
{query}
        ) AS q
        OFFSET 0
    ) AS r
) TO STDOUT
