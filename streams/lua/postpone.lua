#!lua flags=allow-oom
-- Moves a partner's next slot away: a send left later than its slot allowed, and a second that began with it would
-- otherwise hold one send too many.
-- KEYS: pace
-- ARGV: generation, by_us
-- RETURNS: STALE | 1
-- TWICE: postpones again, which only costs a moment
local p = redis.call('HMGET', KEYS[1], 'generation', 'tat')
if p[1] ~= ARGV[1] then return 'STALE' end
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
redis.call('HSET', KEYS[1], 'tat', string.format('%d', math.max(tonumber(p[2] or 0), now) + ARGV[2]))
return 1
