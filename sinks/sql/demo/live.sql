-- How the live lane did: how long the first send of each event took from its 202, in ms, at banks that were never away.
-- One that answered 503 had its breaker open meanwhile, and what came for it waited: that is counted apart.
SELECT count(*) FILTER (WHERE NOT away) AS sent,
       coalesce(percentile_disc(0.5) WITHIN GROUP (ORDER BY waited_ms) FILTER (WHERE NOT away), 0) AS median_ms,
       coalesce(percentile_disc(0.99) WITHIN GROUP (ORDER BY waited_ms) FILTER (WHERE NOT away), 0) AS p99_ms,
       count(*) FILTER (WHERE away) AS sent_away,
       coalesce(max(waited_ms) FILTER (WHERE away), 0) AS longest_away_ms
FROM (
    SELECT (extract(epoch FROM min(log.sent_at) - log.created_at) * 1000)::integer AS waited_ms,
           log.partner IN (SELECT partner FROM delivery_log WHERE status_code = 503) AS away
    FROM delivery_log AS log
    JOIN event USING (source, event_id)
    WHERE event.batch_id IS NULL AND log.number = 1 AND log.sent_at IS NOT NULL
    GROUP BY log.source, log.event_id, log.partner, log.created_at
) AS first
