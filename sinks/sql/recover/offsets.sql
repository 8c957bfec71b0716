SELECT partner, last FROM outcome_offset WHERE generation = %(generation)s
