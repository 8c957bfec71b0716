UPDATE business_day_run
SET state = %(state)s, detail = %(detail)s, ended_at = now()
WHERE job = %(job)s AND business_date = %(business_date)s AND state = 'claimed'
  AND claimed_by = %(owner)s AND attempts = %(attempt)s
