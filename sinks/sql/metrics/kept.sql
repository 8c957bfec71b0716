-- Events that no router has dealt with by the record, how long the oldest waits, and what somebody must look at.
SELECT (SELECT count(*) FROM (SELECT FROM unrouted WHERE reason IS NULL LIMIT %(limit)s) AS found),
       coalesce(extract(epoch FROM now() - (SELECT min(since) FROM unrouted WHERE reason IS NULL)), 0)::double precision,
       (SELECT count(*) FROM unrouted WHERE reason IS NOT NULL),
       (SELECT count(*) FROM conflict WHERE settled_at IS NULL)
