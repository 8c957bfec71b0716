UPDATE schedule_mark
SET next_date = greatest(next_date, %(business_date)s + 1)
WHERE job = %(job)s
