-- The locks of batches that are over; one that somebody holds is left to the next time.
DELETE FROM row_lock
WHERE name IN (SELECT name FROM row_lock WHERE name = ANY (%(names)s::text[]) FOR UPDATE SKIP LOCKED)
