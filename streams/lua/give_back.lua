#!lua flags=allow-oom
-- Returns entries that were taken and not sent: to the tail of live or of the batch's returns. No attempt, no outcome.
-- One that was cancelled meanwhile goes, and leaves what cancel.lua leaves.
-- KEYS: pace, lanes, open
-- ARGV: generation, base, then lane and entry of each
-- RETURNS: STALE | how many were still pending and went back
-- TWICE: does nothing, they are pending no more
local p = redis.call('HMGET', KEYS[1], 'generation', 'pending')
if p[1] ~= ARGV[1] then return 'STALE' end
local base, moved = ARGV[2] .. ':', 0
local function drop(lane, delivery, number)
  redis.call('HSET', KEYS[3], delivery, 'done:cancel/' .. number)
  redis.call('XADD', base .. 'outcomes:' .. ARGV[1], '*', 'o', '', 'd', delivery, 'a', 'cancel/' .. number, 't', '1', 'l', 'cancelled')
  redis.call('HINCRBY', KEYS[1], lane == 'live' and 'live' or 'batch', -1)
  redis.call('HINCRBY', KEYS[1], 'added', 1)
end
for i = 3, #ARGV, 2 do
  local lane, id = ARGV[i], ARGV[i + 1]
  local key = base .. lane
  local entry = redis.call('XRANGE', key, id, id)[1]
  if entry and redis.call('XACK', key, 'senders', id) == 1 then
    redis.call('XDEL', key, id)
    local f = entry[2]
    local cancelled = string.match(redis.call('HGET', KEYS[3], f[2]) or '', '^cancel:(%d+):')
    if cancelled then
      drop(lane, f[2], cancelled)
    else
      local target = string.match(lane, '^batch:%d+$') and lane .. ':returns' or lane
      if redis.call('EXISTS', base .. target) == 0 then
        redis.call('XGROUP', 'CREATE', base .. target, 'senders', '0', 'MKSTREAM')
        redis.call('ZADD', KEYS[2], string.match(target, '^batch:(%d+)') or -1, target)
      end
      local copy = redis.call('XADD', base .. target, '*', 'd', f[2], 'a', f[4], 'u', f[6], 'p', f[8], 'e', f[10])
      redis.call('HSET', KEYS[3], f[2], target .. '/' .. copy)
    end
    moved = moved + 1
  end
end
redis.call('HSET', KEYS[1], 'pending', (p[2] or 0) - moved)
return moved
