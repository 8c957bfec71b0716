#!lua flags=allow-oom
-- Takes over what a consumer whose lease is gone left pending, and removes the consumer once it has nothing.
-- KEYS: pace, lane
-- ARGV: generation, reaper, min_idle_ms, limit, dead consumer
-- RETURNS: STALE | LOST | for each entry: id, delivery, attempts, unknowns, flag, envelope
-- TWICE: takes over the next ones; those of the first run stay pending under the reaper and go idle again
if redis.call('HGET', KEYS[1], 'generation') ~= ARGV[1] then return 'STALE' end
local waiting = redis.pcall('XPENDING', KEYS[2], 'senders', 'IDLE', ARGV[3], '-', '+', ARGV[4], ARGV[5])
if waiting.err then return 'LOST' end
local found = {}
for _, w in ipairs(waiting) do
  for _, entry in ipairs(redis.call('XCLAIM', KEYS[2], 'senders', ARGV[2], ARGV[3], w[1])) do
    local f, n = entry[2], #found
    found[n + 1], found[n + 2], found[n + 3] = entry[1], f[2], f[4]
    found[n + 4], found[n + 5], found[n + 6] = f[6], f[8], f[10]
  end
end
if ARGV[5] ~= ARGV[2] and #redis.call('XPENDING', KEYS[2], 'senders', '-', '+', 1, ARGV[5]) == 0 then
  redis.call('XGROUP', 'DELCONSUMER', KEYS[2], 'senders', ARGV[5])
end
return found
