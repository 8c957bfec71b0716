-- For the loading transaction: the big sorts and hashes stay in memory, and a killed loader's
-- statement ends soon instead of running to its end. Whoever freezes us is not waited for.
SET LOCAL work_mem = '256MB';
SET LOCAL statement_timeout = 0;
SET LOCAL idle_in_transaction_session_timeout = 0;
SET LOCAL client_connection_check_interval = '2s'
