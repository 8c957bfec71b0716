-- How far the scheduler is with the job: its run and what it says about it.
SELECT state, detail
FROM business_day_run
WHERE job = %(job)s AND business_date = %(business_date)s
