-- Gives the claim up without an end: whoever comes next may go on with it at once.
UPDATE business_day_run
SET lease_until = now() - interval '1 microsecond', detail = %(detail)s
WHERE job = %(job)s AND business_date = %(business_date)s AND state = 'claimed'
  AND claimed_by = %(owner)s AND attempts = %(attempt)s
