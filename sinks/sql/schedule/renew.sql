-- Only the holder's own claim; one that somebody took over stays theirs.
UPDATE business_day_run
SET lease_until = now() + %(lease)s
WHERE job = %(job)s AND business_date = %(business_date)s AND state = 'claimed'
  AND claimed_by = %(owner)s AND attempts = %(attempt)s
