-- Transit is gone without a trace: whatever was handed to Redis and has no outcome may have been sent.
UPDATE delivery SET possible_duplicate = true, updated_at = now()
FROM batch_partner
WHERE delivery.partner = %(partner)s AND batch_partner.partner = delivery.partner
  AND batch_partner.batch_id = delivery.batch_id
  AND (delivery.status = 'pending' AND delivery.row_number <= batch_partner.fed_upto
       OR delivery.status = 'retrying' AND delivery.due_at <= now())
