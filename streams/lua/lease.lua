#!lua flags=allow-oom
-- Takes a worker's lease under an id that nobody has; a script, because a plain SET is refused when memory is full.
-- KEYS: lease
-- ARGV: milliseconds
-- RETURNS: 1 | 0 when somebody has it
-- TWICE: 0
return redis.call('SET', KEYS[1], '1', 'NX', 'PX', ARGV[1]) and 1 or 0
