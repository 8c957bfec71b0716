-- From when on the scheduler answers for a job: the day on which it first saw it, then the day after the last it fired.
INSERT INTO schedule_mark (job, next_date)
VALUES (%(job)s, %(today)s)
ON CONFLICT (job) DO NOTHING
