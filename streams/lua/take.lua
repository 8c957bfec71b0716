#!lua flags=allow-oom
-- Hands out a partner's next sends: state, breaker, pace and room say how many, the lanes give them, each with its start.
-- KEYS: pace, lanes
-- ARGV: generation, base, worker, limit, lead_us, horizon_us, most outcomes unrecorded, then lane and entry of each
--       held place
-- RETURNS: STALE | LOST | state, now_us, next_us, recorded, then for each slot
--          lane, entry, start_us, delivery, attempts, unknowns, flag, envelope (nil from delivery on when it was held)
-- TWICE: hands out further slots; what the first run handed out stays pending under the worker, who adopts it
local p = redis.call('HMGET', KEYS[1], 'generation', 'state', 'paused', 'tat', 'paused_until', 'interval_us', 'guard_us',
  'max_in_flight', 'floor_percent', 'credit', 'pending', 'added', 'counted', 'recorded',
  'broken_since', 'ramp_until', 'pause_most_us', 'cancelling')
if p[1] ~= ARGV[1] then return 'STALE' end
local base, worker, limit = ARGV[2] .. ':', ARGV[3], tonumber(ARGV[4])
local lead, horizon = tonumber(ARGV[5]), tonumber(ARGV[6])
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local recorded = p[14] or '0-0'
if p[2] ~= 'open' then return {'closed', now, now + horizon, recorded} end
if p[3] == '1' then return {'paused', now, now + horizon, recorded} end
if (p[12] or 0) - (p[13] or 0) > tonumber(ARGV[7]) then return {'backed_up', now, now + horizon, recorded} end

local interval, floor, credit = tonumber(p[6]), tonumber(p[9]), tonumber(p[10] or 0)
local pending, tat = tonumber(p[11] or 0), tonumber(p[4] or 0)
-- A moment that lies further ahead than anybody sets it: the clock stepped back.
local function near(field, at, most)
  if at <= most then return at end
  redis.call('HSET', KEYS[1], field, string.format('%d', most))
  return most
end
local pause, ramp = tonumber(p[5] or 0), tonumber(p[16] or 0)
if pause > now then pause = near('paused_until', pause, now + (p[17] or 3600000000)) end
if ramp > now then ramp = near('ramp_until', ramp, math.max(now, pause) + 10000000) end
-- Further ahead than the longest horizon hands out (or a fence sets): the clock stepped back. Whoever asks, the bound
-- is the same, or a caller with a short horizon would give slots away a second time.
tat = near('tat', tat, now + 2000000 + interval * (ramp > 0 and 4 or 1))
local start = math.max(tat, now + lead, pause)
-- While the breaker is open, one send at a time, each when it is due; `probe` is the one that is under way.
local broken, probe, probe_next, probe_lasts = tonumber(p[15] or 0) > 0, nil, 0, 0
if broken then
  local b = redis.call('HMGET', KEYS[1], 'probe', 'probe_until', 'probe_next', 'probe_most_us', 'probe_lasts_us')
  probe_lasts = tonumber(b[5])
  probe_next = near('probe_next', tonumber(b[3]), now + b[4])
  if b[1] and near('probe_until', tonumber(b[2]), now + 2000000 + interval * 4 + probe_lasts) > now then
    probe, probe_next = b[1], tonumber(b[2])
  else
    start = math.max(start, probe_next)
  end
  limit = math.min(limit, 1)
end
-- A quarter of the rate for 5 s after a pause or an open breaker, then half of it for 5 s. By the first of the slots,
-- which is never too fast for a later one.
if ramp > start then interval = interval * (ramp > start + 5000000 and 4 or 2) end
local fit = 0
if start <= now + horizon then fit = math.min(limit, math.floor((now + horizon - start) / interval) + 1) end

local slots, used = {'open', now, 0, recorded}, 0
local function hand_out(lane, id, f)
  local n = #slots
  slots[n + 1], slots[n + 2], slots[n + 3] = lane, id, start + used * interval
  slots[n + 4], slots[n + 5], slots[n + 6], slots[n + 7], slots[n + 8] = f[2], f[4], f[6], f[8], f[10]
  used = used + 1
end
-- Cancelled while it was in this hand and not sent: it goes, and leaves what cancel.lua leaves.
local function drop(lane, id)
  local entry = p[18] and redis.call('XRANGE', base .. lane, id, id)[1]
  local number = entry and string.match(redis.call('HGET', base .. 'open', entry[2][2]) or '', '^cancel:(%d+):')
  if not number then return false end
  local attempt = 'cancel/' .. number
  redis.call('XACK', base .. lane, 'senders', id)
  redis.call('XDEL', base .. lane, id)
  redis.call('HSET', base .. 'open', entry[2][2], 'done:' .. attempt)
  redis.call('XADD', base .. 'outcomes:' .. ARGV[1], '*', 'o', '', 'd', entry[2][2], 'a', attempt, 't', '1', 'l', 'cancelled')
  pending = redis.call('HINCRBY', KEYS[1], 'pending', -1)
  redis.call('HINCRBY', KEYS[1], lane == 'live' and 'live' or 'batch', -1)
  redis.call('HINCRBY', KEYS[1], 'added', 1)
  return true
end
local nothing = {[2] = false, [4] = false, [6] = false, [8] = false, [10] = false}
for i = 8, #ARGV, 2 do
  if used >= fit then break end
  local named = not probe or probe == ARGV[i] .. '/' .. ARGV[i + 1] -- held: that probe missed its slot
  local mine = named and redis.pcall('XPENDING', base .. ARGV[i], 'senders', ARGV[i + 1], ARGV[i + 1], 1, worker)
  if mine and not mine.err and #mine == 1 and not drop(ARGV[i], ARGV[i + 1]) then
    -- Idle from now on again, or a reaper could take it between this grant and its send.
    redis.call('XCLAIM', base .. ARGV[i], 'senders', worker, 0, ARGV[i + 1], 'JUSTID')
    hand_out(ARGV[i], ARGV[i + 1], nothing)
  end
end

local room = probe and 0 or math.max(math.min(fit - used, p[8] - pending), 0)
local lost = false
local function read(found, lane, count)
  if count < 1 or lost then return 0 end
  local reply = redis.pcall('XREADGROUP', 'GROUP', 'senders', worker, 'COUNT', count, 'STREAMS', base .. lane, '>')
  if not reply then return 0 end
  if reply.err then lost = true; return 0 end
  for _, entry in ipairs(reply[1][2]) do found[#found + 1] = {lane, entry[1], entry[2]} end
  return #reply[1][2]
end
if room > 0 then
  local live, batch, lanes = {}, {}, redis.call('ZRANGE', KEYS[2], 0, -1)
  local function read_batches(count)
    for _, lane in ipairs(lanes) do
      if lane ~= 'live' and #batch < count then read(batch, lane, count - #batch) end
    end
  end
  local due = math.min(room, math.floor((credit + room * floor) / 100))
  read_batches(due)
  if lanes[1] == 'live' then read(live, 'live', room - #batch) end
  if #batch == due then read_batches(room - #live) end
  for _, e in ipairs(live) do hand_out(e[1], e[2], e[3]) end
  for _, e in ipairs(batch) do hand_out(e[1], e[2], e[3]) end
  local new = #live + #batch
  -- Only a batch that has rows left earns its floor; what it takes beside live is never held against it.
  credit = #batch < due and 0 or math.max(credit + new * floor - #batch * 100, 0)
  if new > 0 then redis.call('HSET', KEYS[1], 'credit', credit, 'pending', pending + new) end
end
if used > 0 then
  tat = start + used * interval
  redis.call('HSET', KEYS[1], 'tat', string.format('%d', tat))
  start = tat
end
if lost then return 'LOST' end
if broken then
  if used > 0 then
    redis.call('HSET', KEYS[1], 'probe', slots[5] .. '/' .. slots[6],
      'probe_until', string.format('%d', slots[7] + probe_lasts))
  end
  slots[1], slots[3] = 'broken', math.max(now + horizon, probe_next - math.floor(horizon / 2))
  return slots
end
if used == 0 and fit > 0 and pending >= tonumber(p[8]) then slots[1] = 'full' end
slots[3] = now + horizon
if used > 0 and used == limit then slots[3] = now
elseif used == fit then slots[3] = math.max(now, start - math.floor(horizon / 2)) end
return slots
