-- For one transaction that may look at a million rows and is never left to itself.
SELECT set_config('statement_timeout', '0', true), set_config('idle_in_transaction_session_timeout', '0', true),
       set_config('lock_timeout', '60000', true), set_config('work_mem', '64MB', true), set_config('jit', 'off', true)
