UPDATE batch_partner SET fed_complete = %(generation)s, finished = %(finished)s
WHERE batch_id = %(batch)s AND partner = %(partner)s
