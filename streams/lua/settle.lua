#!lua flags=allow-oom
-- Says how attempts ended: ack, outcome, and done, dead or delay, in one step. Passes while closed.
-- KEYS: pace, open, delays, dead, outcomes
-- ARGV: generation, base, MessagePack of {lane, entry, delivery, attempt_id, state, attempts, unknowns, flag, delay_s, due_ms}...,
--       then the outcome of each
-- RETURNS: STALE | LOST | for each: id in outcomes, 1 when it came late or was handed in, else 0
-- TWICE: adds the outcomes once more, marked late; the recorder drops them by their attempt_id
local p = redis.call('HMGET', KEYS[1], 'generation', 'state', 'opened', 'pending', 'batch', 'live', 'added')
if p[1] ~= ARGV[1] then return 'STALE' end
local base, opened, lost, reply = ARGV[2] .. ':', p[3], false, {}
local late = p[2] == 'closed' and 'handed' or 'late'
local gone, queued = {}, {} -- deleted at the end, by lane; delays that are in KEYS[3] already
local count = {pending = tonumber(p[4] or 0), batch = tonumber(p[5] or 0), live = tonumber(p[6] or 0)}
local function leave(lane)
  local kind = lane == 'live' and 'live' or 'batch'
  count[kind] = count[kind] - 1
end

-- A success that comes after its entry was given to somebody else takes the copy back, wherever it is. True where the
-- copy was in a hand, whose send may be the second one and may never be told of.
local function withdraw(delivery, attempt)
  local where, twice = redis.call('HGET', KEYS[2], delivery), false
  if where and string.sub(where, 1, 5) == 'done:' then
    if where == 'done:' .. attempt then return false end
    for _, e in ipairs(redis.call('XRANGE', KEYS[4], '-', '+')) do
      if e[2][2] == delivery then redis.call('XDEL', KEYS[4], e[1]) end
    end
  elseif where then
    local place, id = string.match(where, '^(.+)/(.+)$')
    local key = base .. place
    local seconds = string.match(place, '^delay:(%d+)$')
    if seconds then
      local copy = redis.call('XRANGE', key, id, id)[1]
      if copy then
        redis.call('XDEL', key, id)
        leave(copy[2][12])
        queued = {}
        local head = redis.call('XRANGE', key, '-', '+', 'COUNT', 1)[1]
        if head then redis.call('ZADD', KEYS[3], head[2][14], seconds) else redis.call('ZREM', KEYS[3], seconds) end
      end
    else
      local handed = redis.call('XACK', key, 'senders', id)
      count.pending = count.pending - handed
      twice = handed == 1
      if redis.call('XDEL', key, id) == 1 then leave(place) end
    end
  end
  redis.call('HSET', KEYS[2], delivery, 'done:' .. attempt)
  return twice
end

local items = cmsgpack.unpack(ARGV[3])
for i, s in ipairs(items) do
  local lane, id, delivery, attempt, state = s[1], s[2], s[3], s[4], s[5]
  local key, mark = base .. lane, ''
  local terminal = state == 'retrying' and '' or '1'
  -- A batch's ids are the same in every generation, so an attempt of an older one must not ack what was fed since.
  local acked = string.match(attempt, '^[^/]+/(%d+)/') == opened and redis.call('XACK', key, 'senders', id) == 1
  if not acked then
    mark = late
    if state == 'succeeded' and withdraw(delivery, attempt) then mark = 'twice' end
  else
    count.pending = count.pending - 1
    local f = terminal == '' and (redis.call('XRANGE', key, id, id)[1] or {})[2]
    gone[key] = gone[key] or {}
    table.insert(gone[key], id)
    if f then
      local target = string.match(lane, '^batch:%d+$') and lane .. ':returns' or lane
      local copy = redis.call('XADD', base .. 'delay:' .. s[9], '*', 'd', delivery, 'a', s[6], 'u', s[7], 'p', s[8],
        'e', f[10], 'l', target, 't', string.format('%d', s[10]))
      if not queued[s[9]] then redis.call('ZADD', KEYS[3], 'NX', string.format('%d', s[10]), s[9]) end
      queued[s[9]] = true
      redis.call('HSET', KEYS[2], delivery, 'delay:' .. s[9] .. '/' .. copy)
    elseif terminal == '' then
      lost = true
    else
      leave(lane)
      redis.call('HSET', KEYS[2], delivery, 'done:' .. attempt)
      if state == 'dead' then redis.call('XADD', KEYS[4], 'MAXLEN', '~', 1000, '*', 'd', delivery, 'a', attempt, 'o', ARGV[3 + i]) end
    end
  end
  reply[2 * i - 1] = redis.call('XADD', KEYS[5], '*', 'o', ARGV[3 + i], 'd', delivery, 'a', attempt, 't', terminal, 'l', mark)
  reply[2 * i] = acked and 0 or 1
end
for key, ids in pairs(gone) do
  for i = 1, #ids, 1000 do redis.call('XDEL', key, unpack(ids, i, math.min(i + 999, #ids))) end
end
redis.call('HSET', KEYS[1], 'pending', count.pending, 'batch', count.batch, 'live', count.live,
  'added', (p[7] or 0) + #items)
return lost and 'LOST' or reply
