#!lua flags=allow-oom
-- Moves what is due from the delay streams to the lanes that it came from. Only heads are looked at.
-- KEYS: pace, lanes, open, delays
-- ARGV: generation, base, limit
-- RETURNS: STALE | released, next due_ms or nil
-- TWICE: moves what has become due since
local p = redis.call('HMGET', KEYS[1], 'generation', 'state')
if p[1] ~= ARGV[1] then return 'STALE' end
if p[2] ~= 'open' then return {0, false} end
local base, left = ARGV[2] .. ':', tonumber(ARGV[3])
local time = redis.call('TIME')
local now, known = time[1] * 1000 + math.floor(time[2] / 1000), {}
local function move(key, entry)
  local f = entry[2]
  local lane = f[12]
  if not known[lane] and redis.call('EXISTS', base .. lane) == 0 then
    redis.call('XGROUP', 'CREATE', base .. lane, 'senders', '0', 'MKSTREAM')
    redis.call('ZADD', KEYS[2], string.match(lane, '^batch:(%d+)') or -1, lane)
  end
  known[lane] = true
  local copy = redis.call('XADD', base .. lane, '*', 'd', f[2], 'a', f[4], 'u', f[6], 'p', f[8], 'e', f[10])
  redis.call('XDEL', key, entry[1])
  redis.call('HSET', KEYS[3], f[2], lane .. '/' .. copy)
end
local first = redis.call('ZRANGE', KEYS[4], 0, 0, 'WITHSCORES')
-- Ends: each round moves an entry, or puts the stream's next head after now, or drops the stream.
while left > 0 and first[1] and tonumber(first[2]) <= now do
  local key, head = base .. 'delay:' .. first[1], nil
  for _, entry in ipairs(redis.call('XRANGE', key, '-', '+', 'COUNT', math.min(left + 1, 500))) do
    if left == 0 or tonumber(entry[2][14]) > now then head = entry; break end
    move(key, entry)
    left = left - 1
  end
  head = head or redis.call('XRANGE', key, '-', '+', 'COUNT', 1)[1]
  if head then redis.call('ZADD', KEYS[4], head[2][14], first[1]) else redis.call('ZREM', KEYS[4], first[1]) end
  first = redis.call('ZRANGE', KEYS[4], 0, 0, 'WITHSCORES')
end
return {ARGV[3] - left, first[2] and tonumber(first[2]) or false}
