INSERT INTO outcome_offset (partner, tenant, generation)
SELECT partner, tenant, %(generation)s
FROM unnest(%(partners)s::text[], %(tenants)s::text[]) AS new (partner, tenant)
ON CONFLICT DO NOTHING
