#!lua flags=allow-oom
-- Sets the agreed rate and bounds of a partner that is open or closed.
-- KEYS: pace
-- ARGV: generation, interval_us, guard_us, max_in_flight, floor_percent
-- RETURNS: STALE | OK
-- TWICE: nothing
if redis.call('HGET', KEYS[1], 'generation') ~= ARGV[1] then return 'STALE' end
redis.call('HSET', KEYS[1], 'interval_us', ARGV[2], 'guard_us', ARGV[3], 'max_in_flight', ARGV[4], 'floor_percent', ARGV[5])
return 'OK'
