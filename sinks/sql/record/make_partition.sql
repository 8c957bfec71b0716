-- The statement that makes the log's partition of a month; no row where it is there already.
SELECT format('CREATE TABLE %%I PARTITION OF delivery_log FOR VALUES FROM (%%L) TO (%%L)',
              %(name)s::text, %(month)s::timestamptz, %(following)s::timestamptz)
WHERE to_regclass(format('%%I', %(name)s::text)) IS NULL
