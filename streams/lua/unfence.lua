#!lua flags=allow-oom
-- Opens a partner whose lanes and delays were dropped: nothing waits, nothing is in flight.
-- KEYS: pace
-- ARGV: generation, interval_us, guard_us, max_in_flight, floor_percent, paused, then the breaker as configure.lua has it
-- RETURNS: STALE | OK
-- TWICE: sets rate, bounds and pause; the counters only change while it is closed
local p = redis.call('HMGET', KEYS[1], 'generation', 'state')
if p[1] ~= ARGV[1] then return 'STALE' end
redis.call('HSET', KEYS[1], 'interval_us', ARGV[2], 'guard_us', ARGV[3], 'max_in_flight', ARGV[4], 'floor_percent', ARGV[5],
  'paused', ARGV[6], 'state', 'open', 'opened', ARGV[1], 'failures_most', ARGV[7], 'probe_us', ARGV[8],
  'probe_most_us', ARGV[9], 'probe_lasts_us', ARGV[10], 'pause_most_us', ARGV[11])
if ARGV[7] == '0' then redis.call('HDEL', KEYS[1], 'broken_since', 'failures') end
-- The pause that a partner asked for and a breaker that is open outlast a recovery; the probe is in nobody's hand now.
if p[2] == 'closed' then redis.call('HDEL', KEYS[1], 'probe', 'probe_until') end
if p[2] == 'closed' then redis.call('HSET', KEYS[1], 'pending', 0, 'batch', 0, 'live', 0, 'credit', 0) end
return 'OK'
