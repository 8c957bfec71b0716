#!lua flags=allow-oom
-- Says how attempts ended: ack, outcome, and done, dead or delay, in one step; and what they say of the partner: its
-- breaker, and the pause that it asked for. Passes while closed.
-- KEYS: pace, open, delays, dead, outcomes
-- ARGV: generation, base, MessagePack of {lane, entry, delivery, attempt_id, state, attempts, unknowns, flag, delay_s, due_ms,
--       sign, ended_us, pause_us, reason, {state, attempts, unknowns, due_ms, n} where the breaker was open}...,
--       then the outcome of each; the other outcome of such a one is ARGV[n]
-- RETURNS: STALE | LOST | '', opened or closed, then for each: id in outcomes, 1 when it came late or was handed in, else 0
-- TWICE: adds the outcomes once more, marked late; the recorder drops them by their attempt_id
local p = redis.call('HMGET', KEYS[1], 'generation', 'state', 'opened', 'pending', 'batch', 'live', 'added',
  'failures_most', 'failures', 'broken_since', 'probe')
if p[1] ~= ARGV[1] then return 'STALE' end
local base, opened, lost, reply = ARGV[2] .. ':', p[3], false, {''}
local late = p[2] == 'closed' and 'handed' or 'late'
local gone, queued = {}, {} -- deleted at the end, by lane; delays that are in KEYS[3] already
local count = {pending = tonumber(p[4] or 0), batch = tonumber(p[5] or 0), live = tonumber(p[6] or 0)}
local function leave(lane)
  local kind = lane == 'live' and 'live' or 'batch'
  count[kind] = count[kind] - 1
end
local time = redis.call('TIME')
local now, known = time[1] * 1000000 + time[2], {failures = tonumber(p[9] or 0), since = tonumber(p[10] or 0)}
local failures, since, pause = known.failures, known.since, 0

-- What an attempt that was ended in time says of its partner. A failure counts as consecutive in the order of settling.
local function learn(s)
  local probing = p[11] == s[1] .. '/' .. s[2]
  if probing then redis.call('HDEL', KEYS[1], 'probe', 'probe_until') end
  if s[11] == 'failed' then
    local d = redis.call('HMGET', KEYS[1], 'failures_most', 'probe_us', 'probe_most_us', 'probe_wait')
    local wait
    failures = failures + 1
    if since > 0 then
      if probing then wait = math.min(d[4] * 2, tonumber(d[3])) end
    elseif tonumber(d[1] or 0) > 0 and failures >= tonumber(d[1]) then
      wait, since = tonumber(d[2]), s[12]
      redis.call('HDEL', KEYS[1], 'probe', 'probe_until') -- of the last time, closed by another answer
    end
    if since > 0 then redis.call('HSET', KEYS[1], 'broken_by', s[14]) end
    if wait then redis.call('HSET', KEYS[1], 'probe_wait', wait, 'probe_next', string.format('%d', now + wait)) end
  elseif s[11] == 'answered' then
    -- What was answered before it opened says nothing of the time since.
    if since == 0 or s[12] > since then failures, since = 0, 0 end
  end
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
    local place, id = string.match(string.gsub(where, '^cancel:%d+:', ''), '^(.+)/(.+)$')
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
  local key, mark, outcome = base .. lane, '', ARGV[3 + i]
  if s[15] and since > 0 and s[12] > since then
    state, s[6], s[7], s[9], s[10], outcome = s[15][1], s[15][2], s[15][3], 0, s[15][4], ARGV[s[15][5]]
  end
  local terminal = state == 'retrying' and '' or '1'
  -- Cancelled while it was in this hand: not sent again. The recorder says whether it may have arrived.
  if terminal == '' and string.sub(redis.call('HGET', KEYS[2], delivery) or '', 1, 7) == 'cancel:' then terminal = '1' end
  -- A batch's ids are the same in every generation, so an attempt of an older one must not ack what was fed since.
  local acked = string.match(attempt, '^[^/]+/(%d+)/') == opened and redis.call('XACK', key, 'senders', id) == 1
  if not acked then
    mark = late
    if state == 'succeeded' and withdraw(delivery, attempt) then mark = 'twice' end
  else
    if since > 0 or failures > 0 or s[11] == 'failed' then learn(s) end
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
      if state == 'dead' then redis.call('XADD', KEYS[4], 'MAXLEN', '~', 1000, '*', 'd', delivery, 'a', attempt, 'o', outcome) end
    end
  end
  if s[13] > 0 then pause = math.max(pause, (acked and now or s[12]) + s[13]) end
  reply[2 * i] = redis.call('XADD', KEYS[5], '*', 'o', outcome, 'd', delivery, 'a', attempt, 't', terminal, 'l', mark)
  reply[2 * i + 1] = acked and 0 or 1
end
for key, ids in pairs(gone) do
  for i = 1, #ids, 1000 do redis.call('XDEL', key, unpack(ids, i, math.min(i + 999, #ids))) end
end
redis.call('HSET', KEYS[1], 'pending', count.pending, 'batch', count.batch, 'live', count.live,
  'added', (p[7] or 0) + #items)
if failures ~= known.failures or since ~= known.since then
  redis.call('HSET', KEYS[1], 'failures', failures, 'broken_since', string.format('%d', since))
end
if pause > 0 or (known.since > 0 and since == 0) then
  -- Never shortened. Afterwards the rate comes back by and by, see take.lua.
  pause = math.max(pause, tonumber(redis.call('HGET', KEYS[1], 'paused_until') or 0))
  redis.call('HSET', KEYS[1], 'paused_until', string.format('%d', pause),
    'ramp_until', string.format('%d', math.max(pause, now) + 10000000))
end
if (since > 0) ~= (known.since > 0) then reply[1] = since > 0 and 'opened' or 'closed' end
return lost and 'LOST' or reply
