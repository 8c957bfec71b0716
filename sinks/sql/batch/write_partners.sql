-- What the feeder reads: only partners who have rows.
INSERT INTO batch_partner (batch_id, partner, tenant, rows)
SELECT batch_id, partner, 'default', sum(loaded_count)
FROM batch_total
WHERE batch_id = %(batch_id)s AND loaded_count > 0
GROUP BY batch_id, partner
