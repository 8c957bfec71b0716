-- Held while one chunk after the other is handed over; whoever does not get it leaves the batch to its holder.
SELECT name FROM row_lock WHERE name = %(name)s FOR UPDATE SKIP LOCKED
