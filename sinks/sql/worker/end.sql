UPDATE worker SET ended_at = now(), in_flight = 0 WHERE id = %(id)s
