UPDATE worker SET heartbeat_at = now(), in_flight = %(in_flight)s, generation = greatest(generation, %(generation)s)
WHERE id = %(id)s AND ended_at IS NULL
