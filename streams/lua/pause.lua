#!lua flags=allow-oom
-- Stops or resumes the handing out of a partner's sends, as PostgreSQL has it.
-- KEYS: pace
-- ARGV: generation, 1 or 0
-- RETURNS: STALE | OK
-- TWICE: nothing
if redis.call('HGET', KEYS[1], 'generation') ~= ARGV[1] then return 'STALE' end
redis.call('HSET', KEYS[1], 'paused', ARGV[2])
return 'OK'
