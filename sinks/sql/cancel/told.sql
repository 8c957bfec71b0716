UPDATE cancelled SET told = true
WHERE event = ANY (%(events)s) AND partner = %(partner)s
