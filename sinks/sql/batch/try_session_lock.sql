-- Held as long as the session lives: a killed owner's batch is free at once, not only after its lease.
SELECT pg_try_advisory_lock(hashtextextended('madeira batch', %(batch_id)s))
