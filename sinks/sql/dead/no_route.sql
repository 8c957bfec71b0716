UPDATE chosen SET left_out = %(why)s
FROM unnest(%(events)s::bigint[], %(partners)s::text[]) AS none (event, partner)
WHERE chosen.event = none.event AND chosen.partner = none.partner
