-- Madeira's count: every delivery in exactly one of three places, with its amount in hundredths.
SELECT delivery.partner,
       CASE WHEN status = 'succeeded' THEN 'delivered'
            WHEN status = 'dead' THEN 'dead'
            ELSE 'open' END                AS place,
       count(*)                            AS count,
       coalesce(sum(amount_minor), 0)::bigint AS minor
FROM delivery JOIN event ON event.id = delivery.event
GROUP BY delivery.partner, place
