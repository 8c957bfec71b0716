SELECT pg_advisory_unlock(hashtextextended('madeira batch', %(batch_id)s))
