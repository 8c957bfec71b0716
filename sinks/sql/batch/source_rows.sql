-- Every row as it is staged. row_to_json keeps the zeros of a numeric and the order of the columns.
COPY (
    SELECT {event_id}, {partner}, {amount}, {currency}, {order_key}, row_to_json(q)
    FROM (
{query}
    ) AS q
) TO STDOUT
