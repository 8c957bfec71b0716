#!lua
-- Puts deliveries that Redis does not have yet into a lane; makes the lane when it is missing. Refused when memory is full.
-- KEYS: pace, lanes, open, lane
-- ARGV: generation, lane, order, last id expected or '', read_at_us,
--       MessagePack of {entry|nil, delivery, attempts, unknowns, flag, ended|nil}..., then the envelope of each;
--       ended: attempts of a life that is over, so that their `done` says nothing of this one
-- RETURNS: STALE | {refused, last id} | {fed, skipped}
-- TWICE: refused as moved where a last id is expected, else skips what the first run fed
local p = redis.call('HMGET', KEYS[1], 'generation', 'state')
if p[1] ~= ARGV[1] then return 'STALE' end
if p[2] ~= 'open' then return {'closed', ''} end
local last = '0-0'
local there = redis.call('EXISTS', KEYS[4]) == 1
if there then
  local info = redis.call('XINFO', 'STREAM', KEYS[4])
  for i = 1, #info, 2 do
    if info[i] == 'last-generated-id' then last = info[i + 1] end
  end
end
if ARGV[4] ~= '' and ARGV[4] ~= last then return {'moved', last} end
local time = redis.call('TIME')
local age = time[1] * 1000000 + time[2] - ARGV[5]
-- A reading from the future was made by a clock that has stepped back since.
if age > 10000000 or age < -1000000 then return {'too_old', last} end
if not there then redis.call('XGROUP', 'CREATE', KEYS[4], 'senders', '0', 'MKSTREAM') end
redis.call('ZADD', KEYS[2], ARGV[3], ARGV[2])

local fed, skipped, refused, rows = 0, 0, false, cmsgpack.unpack(ARGV[6])
local function forget_ended(r)
  local where = redis.call('HGET', KEYS[3], r[2])
  for _, attempt in ipairs(r[6]) do
    if where == 'done:' .. attempt then redis.call('HDEL', KEYS[3], r[2]) end
  end
end
for i, r in ipairs(rows) do
  if r[6] then forget_ended(r) end
  if redis.call('HSETNX', KEYS[3], r[2], r[1] and ARGV[2] .. '/' .. r[1] or '') == 0 then
    skipped = skipped + 1
  else
    local id = redis.pcall('XADD', KEYS[4], r[1] or '*', 'd', r[2], 'a', r[3], 'u', r[4], 'p', r[5], 'e', ARGV[6 + i])
    if type(id) == 'table' then
      redis.call('HDEL', KEYS[3], r[2])
      refused = {'moved', last}
      break
    end
    if not r[1] then redis.call('HSET', KEYS[3], r[2], ARGV[2] .. '/' .. id) end
    last, fed = id, fed + 1
  end
end
redis.call('HINCRBY', KEYS[1], ARGV[2] == 'live' and 'live' or 'batch', fed)
local final = rows[#rows] and rows[#rows][1]
-- The last id is how far the rows were dealt with, so a tail that was skipped moves it as well.
if final and not refused and final ~= last then redis.pcall('XSETID', KEYS[4], final) end
return refused or {fed, skipped}
