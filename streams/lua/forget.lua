#!lua flags=allow-oom
-- Forgets what PostgreSQL has had for a while: exactly that done in open, and the outcome itself.
-- KEYS: pace, open, outcomes
-- ARGV: generation, last id to forget, limit
-- RETURNS: STALE | how many outcomes were trimmed
-- TWICE: goes on with the next ones
if redis.call('HGET', KEYS[1], 'generation') ~= ARGV[1] then return 'STALE' end
local entries = redis.call('XRANGE', KEYS[3], '-', ARGV[2], 'COUNT', ARGV[3])
if #entries == 0 then return 0 end
for _, entry in ipairs(entries) do
  local f = entry[2]
  if f[8] == '1' and redis.call('HGET', KEYS[2], f[4]) == 'done:' .. f[6] then redis.call('HDEL', KEYS[2], f[4]) end
end
local ms, seq = string.match(entries[#entries][1], '^(%d+)-(%d+)$')
return redis.call('XTRIM', KEYS[3], 'MINID', string.format('%s-%d', ms, seq + 1))
