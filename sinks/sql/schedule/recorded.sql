SELECT business_date
FROM business_day_run
WHERE job = %(job)s AND business_date >= %(first)s
