-- Takes a revision. A second run that wants the same one waits here for the first, then finds it taken: no row.
INSERT INTO report_run (business_date, revision, as_of, verdict, directory, totals)
VALUES (%(business_date)s, %(revision)s, %(as_of)s, %(verdict)s, %(directory)s, %(totals)s)
ON CONFLICT (business_date, revision) DO NOTHING
RETURNING revision;
