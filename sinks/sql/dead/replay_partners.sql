INSERT INTO batch_partner (batch_id, partner, tenant, rows)
SELECT %(batch)s, chosen.partner, coalesce(known.tenant, 'default'), count(*)
FROM chosen
LEFT JOIN unnest(%(partners)s::text[], %(tenants)s::text[]) AS known (partner, tenant) USING (partner)
WHERE left_out IS NULL
GROUP BY chosen.partner, known.tenant
