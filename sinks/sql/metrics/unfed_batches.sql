-- Rows of released batches that were never handed to Redis, and how long since the oldest such batch was released.
SELECT bp.partner, 'batch', sum(bp.rows - bp.fed_upto)::bigint,
       extract(epoch FROM now() - min(b.released_at))::double precision
FROM batch_partner AS bp
JOIN batch AS b ON b.id = bp.batch_id
WHERE b.state = 'released'
  AND bp.partner = ANY (%(partners)s)
  AND NOT bp.finished
  AND bp.fed_upto < bp.rows
GROUP BY bp.partner
