-- True where no other transaction records now; no row is touched, so an idle step writes nothing to disk.
SELECT pg_try_advisory_xact_lock(hashtextextended('madeira recorder', 0))
