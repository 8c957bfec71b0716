INSERT INTO cancelled (event, partner, audit)
SELECT event, partner, %(audit)s FROM chosen WHERE left_out IS NULL
ON CONFLICT (event, partner) DO UPDATE SET audit = excluded.audit, told = false
