-- Redis would not have these: they wait here, and sweep hands them over.
UPDATE delivery SET fed_generation = %(instead)s
WHERE event = ANY (%(events)s) AND partner = %(partner)s AND status = 'pending' AND fed_generation = %(generation)s
