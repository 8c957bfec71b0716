#!lua flags=allow-oom
-- Sets the agreed rate and bounds of a partner that is open or closed.
-- KEYS: pace
-- ARGV: generation, interval_us, guard_us, max_in_flight, floor_percent, then the breaker's failures, probe_us, probe_most_us, probe_lasts_us
--       and pause_most_us
-- RETURNS: STALE | OK
-- TWICE: nothing
if redis.call('HGET', KEYS[1], 'generation') ~= ARGV[1] then return 'STALE' end
redis.call('HSET', KEYS[1], 'interval_us', ARGV[2], 'guard_us', ARGV[3], 'max_in_flight', ARGV[4], 'floor_percent', ARGV[5],
  'failures_most', ARGV[6], 'probe_us', ARGV[7], 'probe_most_us', ARGV[8], 'probe_lasts_us', ARGV[9], 'pause_most_us', ARGV[10])
if ARGV[6] == '0' then redis.call('HDEL', KEYS[1], 'broken_since', 'failures') end
return 'OK'
