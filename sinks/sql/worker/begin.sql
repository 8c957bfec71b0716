INSERT INTO worker (id, host, pid, generation) VALUES (%(id)s, %(host)s, %(pid)s, %(generation)s)
