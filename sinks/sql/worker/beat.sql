-- One process, under its present id and those that it had before: what it has in hand from then is its own, too.
UPDATE worker SET heartbeat_at = now(), in_flight = %(in_flight)s, generation = greatest(generation, %(generation)s)
WHERE id = ANY (%(ids)s) AND ended_at IS NULL
RETURNING id
