#!lua flags=allow-oom
-- Takes cancelled deliveries out of lanes and delays; flags what is in a hand, where settle, give_back or take ends it.
-- Leaves `done:cancel/<number>`, so that no feeder which read it before adds it, and an outcome by which forget clears it.
-- KEYS: pace, open, delays, outcomes
-- ARGV: generation, base, then each delivery and the number of its cancellation
-- RETURNS: STALE | nil: closed, nothing was done | for each 0: is out, 1: in a hand, 2: its end is in the outcomes
-- TWICE: answers where they are by then
local p = redis.call('HMGET', KEYS[1], 'generation', 'state', 'batch', 'live', 'added')
if p[1] ~= ARGV[1] then return 'STALE' end
if p[2] ~= 'open' then return false end
local base, reply, added, held = ARGV[2] .. ':', {}, 0, false
local count = {batch = tonumber(p[3] or 0), live = tonumber(p[4] or 0)}
local function leave(lane)
  local kind = lane == 'live' and 'live' or 'batch'
  count[kind] = count[kind] - 1
end
local function undelay(seconds, id)
  local key = base .. 'delay:' .. seconds
  local copy = redis.call('XRANGE', key, id, id)[1]
  if not copy then return end
  redis.call('XDEL', key, id)
  leave(copy[2][12])
  local head = redis.call('XRANGE', key, '-', '+', 'COUNT', 1)[1]
  if head then redis.call('ZADD', KEYS[3], head[2][14], seconds) else redis.call('ZREM', KEYS[3], seconds) end
end
for i = 3, #ARGV, 2 do
  local delivery, attempt, said = ARGV[i], 'cancel/' .. ARGV[i + 1], 0
  local where = redis.call('HGET', KEYS[2], delivery) or ''
  local place, id = string.match(where, '^(.+)/(.+)$')
  if string.sub(where, 1, 12) == 'done:cancel/' then said = 0
  elseif string.sub(where, 1, 5) == 'done:' then said = 2
  elseif string.sub(where, 1, 7) == 'cancel:' then said = 1
  elseif place and string.match(place, '^delay:') then undelay(string.sub(place, 7), id)
  elseif place then
    if #redis.call('XPENDING', base .. place, 'senders', id, id, 1) == 1 then
      said, held = 1, true
      redis.call('HSET', KEYS[2], delivery, 'cancel:' .. ARGV[i + 1] .. ':' .. where)
    elseif redis.call('XDEL', base .. place, id) == 1 then leave(place) end
  end
  if said == 0 and where ~= 'done:' .. attempt then
    redis.call('HSET', KEYS[2], delivery, 'done:' .. attempt)
    redis.call('XADD', KEYS[4], '*', 'o', '', 'd', delivery, 'a', attempt, 't', '1', 'l', 'cancelled')
    added = added + 1
  end
  reply[#reply + 1] = said
end
redis.call('HSET', KEYS[1], 'batch', count.batch, 'live', count.live, 'added', (p[5] or 0) + added)
if held then redis.call('HSET', KEYS[1], 'cancelling', 1) end
return reply
