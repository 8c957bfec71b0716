-- The first statement of a snapshot: everything after it sees the record as of this moment. The settings end with
-- the transaction; times as text must not depend on how the server is configured.
SELECT
    statement_timestamp(),
    set_config('TimeZone', 'UTC', true),
    set_config('DateStyle', 'ISO', true),
    set_config('statement_timeout', '0', true),
    set_config('work_mem', '64MB', true),
    set_config('jit', 'off', true);
