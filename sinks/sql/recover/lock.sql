-- The one recovery lock; whoever does not get it leaves the work to its holder. Its session is idle while others work
-- (the longest wait is for a slow worker's lease), so it may be so for longer than others; then the lock is lost.
SELECT name, set_config('idle_in_transaction_session_timeout', '600000', true)
FROM row_lock WHERE name = 'recovery' FOR UPDATE SKIP LOCKED
