SELECT state, claimed_by, lease_until, detail
FROM business_day_run
WHERE job = %(job)s AND business_date = %(business_date)s
