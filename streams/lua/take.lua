#!lua flags=allow-oom
-- Hands out a partner's next sends: state, pace and room say how many, the lanes give them, each with its start.
-- KEYS: pace, lanes
-- ARGV: generation, base, worker, limit, lead_us, horizon_us, most outcomes unrecorded, then lane and entry of each
--       held place
-- RETURNS: STALE | LOST | state, now_us, next_us, recorded, then for each slot
--          lane, entry, start_us, delivery, attempts, unknowns, flag, envelope (nil from delivery on when it was held)
-- TWICE: hands out further slots; what the first run handed out stays pending under the worker, who adopts it
local p = redis.call('HMGET', KEYS[1], 'generation', 'state', 'paused', 'tat', 'paused_until', 'interval_us', 'guard_us',
  'max_in_flight', 'floor_percent', 'credit', 'pending', 'added', 'counted', 'recorded')
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
-- Further ahead than the longest horizon hands out (or a fence sets): the clock stepped back. Whoever asks, the bound
-- is the same, or a caller with a short horizon would give slots away a second time.
local furthest = now + 2000000 + interval
if tat > furthest then
  tat = furthest
  redis.call('HSET', KEYS[1], 'tat', string.format('%d', tat))
end
local start = math.max(tat, now + lead, tonumber(p[5] or 0))
local fit = 0
if start <= now + horizon then fit = math.min(limit, math.floor((now + horizon - start) / interval) + 1) end

local slots, used = {'open', now, 0, recorded}, 0
local function hand_out(lane, id, f)
  local n = #slots
  slots[n + 1], slots[n + 2], slots[n + 3] = lane, id, start + used * interval
  slots[n + 4], slots[n + 5], slots[n + 6], slots[n + 7], slots[n + 8] = f[2], f[4], f[6], f[8], f[10]
  used = used + 1
end
local nothing = {[2] = false, [4] = false, [6] = false, [8] = false, [10] = false}
for i = 8, #ARGV, 2 do
  if used >= fit then break end
  local mine = redis.pcall('XPENDING', base .. ARGV[i], 'senders', ARGV[i + 1], ARGV[i + 1], 1, worker)
  if not mine.err and #mine == 1 then
    -- Idle from now on again, or a reaper could take it between this grant and its send.
    redis.call('XCLAIM', base .. ARGV[i], 'senders', worker, 0, ARGV[i + 1], 'JUSTID')
    hand_out(ARGV[i], ARGV[i + 1], nothing)
  end
end

local room = math.max(math.min(fit - used, p[8] - pending), 0)
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
if used == 0 and fit > 0 and pending >= tonumber(p[8]) then slots[1] = 'full' end
slots[3] = now + horizon
if used > 0 and used == limit then slots[3] = now
elseif used == fit then slots[3] = math.max(now, start - math.floor(horizon / 2)) end
return slots
