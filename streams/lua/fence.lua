#!lua flags=allow-oom
-- Begins a generation: everyone of an older one is stale from now on, and only settle passes until unfence.
-- KEYS: pace
-- ARGV: generation, guard_us
-- RETURNS: STALE when a later generation is there, or this one is open already | the generation found before, or nil
-- TWICE: waits a second more; the counters of the outcomes stay
local p = redis.call('HMGET', KEYS[1], 'generation', 'state')
local before = p[1]
if before and tonumber(before) > tonumber(ARGV[1]) then return 'STALE' end
if before == ARGV[1] and p[2] == 'open' then return 'STALE' end
local time = redis.call('TIME')
-- A second without a send: whoever holds slots of the old generation may still use them.
local tat = time[1] * 1000000 + time[2] + 1000000 + ARGV[2]
redis.call('HSET', KEYS[1], 'generation', ARGV[1], 'state', 'closed', 'tat', string.format('%d', tat))
if before ~= ARGV[1] then redis.call('HSET', KEYS[1], 'recorded', '0-0', 'added', 0, 'counted', 0) end
return before and tonumber(before) or false
