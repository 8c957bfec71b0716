#!lua flags=allow-oom
-- Makes an inbound shard's group and its stream; a script, because XGROUP CREATE is refused when memory is full, and
-- then nobody could drain the other shards. From the beginning: a routed entry is deleted.
-- KEYS: the shard's stream
-- ARGV: none
-- RETURNS: 1 | 0 when it is there
-- TWICE: 0
local made = redis.pcall('XGROUP', 'CREATE', KEYS[1], 'routers', '0', 'MKSTREAM')
if not made.err then return 1 end
return string.find(made.err, 'BUSYGROUP', 1, true) and 0 or made
