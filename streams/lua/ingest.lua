#!lua
-- Accepts events: for each the mark that it was seen and the entry for the routers, both or neither. Refused when
-- memory is full, also with no events at all: that asks for room.
-- KEYS: the shard's stream, then the mark of each event
-- ARGV: for each event one text: body hash (32), trace id (32), remember_ms (13 digits), then its bytes
-- RETURNS: now_us, then for each 0 accepted, 1 seen with this body, 2 seen with another, and the first one's trace id
-- TWICE: what the first run accepted was seen
local time, reply = redis.call('TIME'), {}
reply[1] = time[1] * 1000000 + time[2]
local there = #KEYS == 1 or redis.call('EXISTS', KEYS[1]) == 1
if not there then redis.call('XGROUP', 'CREATE', KEYS[1], 'routers', '0', 'MKSTREAM') end
for i = 2, #KEYS do
  local event = ARGV[i - 1]
  local mark = redis.call('SET', KEYS[i], string.sub(event, 1, 64), 'NX', 'GET', 'PX', tonumber(string.sub(event, 65, 77)))
  if mark then
    reply[2 * i - 2] = string.sub(mark, 1, 32) == string.sub(event, 1, 32) and 1 or 2
    reply[2 * i - 1] = string.sub(mark, 33)
  else
    local added = redis.pcall('XADD', KEYS[1], '*', 'e', string.sub(event, 78))
    if type(added) == 'table' then
      redis.call('DEL', KEYS[i])
      return added
    end
    reply[2 * i - 2], reply[2 * i - 1] = 0, string.sub(event, 33, 64)
  end
end
return reply
