-- Which of these batches are over for their partner: all was fed, and every delivery has come to its end by the record.
SELECT bp.partner, bp.batch_id
FROM unnest(%(partners)s::text[], %(batches)s::bigint[]) AS emptied (partner, batch_id)
JOIN batch_partner AS bp USING (partner, batch_id)
WHERE (bp.finished OR bp.fed_complete = %(generation)s)
  AND NOT EXISTS (
      SELECT FROM delivery AS d
      WHERE d.batch_id = bp.batch_id AND d.partner = bp.partner AND d.status IN ('held', 'pending', 'retrying')
  )
