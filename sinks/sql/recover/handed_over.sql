-- How far the rows of each batch were handed to Redis, whatever Redis kept of them.
SELECT batch_id, fed_upto FROM batch_partner WHERE partner = %(partner)s AND fed_upto > 0 AND NOT finished
