SELECT partner, tenant, generation FROM outcome_offset WHERE generation < %(generation)s
