INSERT INTO batch_total (
    batch_id, partner, currency, expected_count, expected_minor, known_count, known_minor, loaded_count, loaded_minor
)
VALUES (
    %(batch_id)s, %(partner)s, %(currency)s, %(expected_count)s, %(expected_minor)s,
    %(known_count)s, %(known_minor)s, %(loaded_count)s, %(loaded_minor)s
)
