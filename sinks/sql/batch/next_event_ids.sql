SELECT array_agg(nextval('event_id_seq')) FROM generate_series(1, %(count)s)
