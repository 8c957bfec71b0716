-- One row per job and business date, and one holder of it. A run that is done is never claimed again; one that failed
-- only by hand; one that is running only once its lease is over, which its holder's process let happen by dying.
INSERT INTO business_day_run AS run (job, business_date, state, claimed_by, lease_until, due_at)
VALUES (%(job)s, %(business_date)s, 'claimed', %(owner)s, now() + %(lease)s, %(due_at)s)
ON CONFLICT (job, business_date) DO UPDATE
SET state = 'claimed',
    claimed_by = excluded.claimed_by,
    lease_until = excluded.lease_until,
    attempts = run.attempts + 1,
    ended_at = NULL,
    detail = ''
WHERE (run.state = 'claimed' AND run.lease_until < now())
   OR (run.state = 'failed' AND %(by_hand)s)
RETURNING attempts
