#!lua flags=allow-oom
-- Notes how far PostgreSQL has the outcomes of this generation. Never lowers.
-- KEYS: pace
-- ARGV: generation, last id in outcomes, how many outcomes up to there
-- RETURNS: STALE | OK
-- TWICE: nothing
local p = redis.call('HMGET', KEYS[1], 'generation', 'recorded', 'counted')
if p[1] ~= ARGV[1] then return 'STALE' end
local function later(a, b)
  local a_ms, a_seq = string.match(a, '^(%d+)-(%d+)$')
  local b_ms, b_seq = string.match(b, '^(%d+)-(%d+)$')
  if a_ms ~= b_ms then return tonumber(a_ms) > tonumber(b_ms) end
  return tonumber(a_seq) > tonumber(b_seq)
end
if later(ARGV[2], p[2] or '0-0') then redis.call('HSET', KEYS[1], 'recorded', ARGV[2]) end
if tonumber(ARGV[3]) > tonumber(p[3] or 0) then redis.call('HSET', KEYS[1], 'counted', ARGV[3]) end
return 'OK'
