-- The one recovery lock; whoever does not get it leaves the work to its holder.
SELECT name FROM row_lock WHERE name = 'recovery' FOR UPDATE SKIP LOCKED
