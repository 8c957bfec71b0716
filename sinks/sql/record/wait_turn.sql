-- As take_turn, but waits for the other to end.
SELECT pg_advisory_xact_lock(hashtextextended('madeira recorder', 0)) IS NOT NULL
