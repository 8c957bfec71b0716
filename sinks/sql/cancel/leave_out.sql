UPDATE chosen SET left_out = %(resolve)s WHERE status = 'dead' AND arrived
