UPDATE batch_partner SET fed_upto = greatest(fed_upto, %(upto)s)
WHERE batch_id = %(batch)s AND partner = %(partner)s
