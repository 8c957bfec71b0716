-- For this transaction: reach rows by their keys, one after the other, whatever the statistics say. A table that was
-- loaded a moment ago has none, and a plan that reads all of it for each few rows stops the night. Where nothing but a
-- scan will do (a table of one row), the plan looks so dear that it would be compiled first (200 ms, hence no jit) or
-- shared by processes that take longer to start. No sort where an index has the order: it would read all for the first.
SELECT set_config('plan_cache_mode', 'force_custom_plan', true), set_config('enable_seqscan', 'off', true),
       set_config('enable_hashjoin', 'off', true), set_config('enable_mergejoin', 'off', true),
       set_config('enable_sort', 'off', true), set_config('max_parallel_workers_per_gather', '0', true),
       set_config('jit', 'off', true)
