-- Runs without an end. One whose lease is over has lost its holder; the others are being run.
SELECT business_date, lease_until < now() AS orphaned
FROM business_day_run
WHERE job = %(job)s AND state = 'claimed'
