#!lua flags=allow-oom
-- Drops the lanes of a batch that is over for this partner, which every take would look at for ever.
-- KEYS: pace, lanes, lane, returns lane
-- ARGV: generation, lane, returns lane
-- RETURNS: STALE | how many lanes went: 0 while something is in them or the partner is closed
-- TWICE: nothing
local p = redis.call('HMGET', KEYS[1], 'generation', 'state')
if p[1] ~= ARGV[1] then return 'STALE' end
if p[2] ~= 'open' or redis.call('XLEN', KEYS[3]) + redis.call('XLEN', KEYS[4]) > 0 then return 0 end
redis.call('ZREM', KEYS[2], ARGV[2], ARGV[3])
return redis.call('UNLINK', KEYS[3], KEYS[4])
