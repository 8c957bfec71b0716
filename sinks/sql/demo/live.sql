-- How the live lane did: events whose every delivery is done, and how long the first send took from the 202, in ms.
-- What a bank made wait (503, a late answer) is in the second send, not in the first.
SELECT count(*) AS sent,
       coalesce(percentile_disc(0.5) WITHIN GROUP (ORDER BY waited_ms), 0) AS median_ms,
       coalesce(percentile_disc(0.99) WITHIN GROUP (ORDER BY waited_ms), 0) AS p99_ms
FROM (
    SELECT (extract(epoch FROM min(log.sent_at) - log.created_at) * 1000)::integer AS waited_ms
    FROM delivery_log AS log
    JOIN event USING (source, event_id)
    WHERE event.batch_id IS NULL AND log.number = 1 AND log.sent_at IS NOT NULL
    GROUP BY log.source, log.event_id, log.partner, log.created_at
) AS first
