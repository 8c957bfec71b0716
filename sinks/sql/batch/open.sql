INSERT INTO batch (job, business_date, revision)
VALUES (%(job)s, %(business_date)s, %(revision)s)
ON CONFLICT (job, business_date, revision) DO NOTHING
