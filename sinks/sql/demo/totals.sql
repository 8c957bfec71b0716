-- Madeira's count: every delivery of each lane in exactly one of three places, with its amount in hundredths.
SELECT delivery.partner,
       delivery.batch_id IS NULL           AS live,
       CASE WHEN status = 'succeeded' THEN 'delivered'
            WHEN status = 'dead' THEN 'dead'
            ELSE 'open' END                AS place,
       count(*)                            AS count,
       coalesce(sum(amount_minor), 0)::bigint AS minor
FROM delivery JOIN event ON event.id = delivery.event
GROUP BY delivery.partner, live, place
