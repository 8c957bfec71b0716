SELECT
    partner, currency, expected_count, expected_minor, known_count, known_minor, loaded_count, loaded_minor
FROM batch_total
WHERE batch_id = %(batch_id)s
ORDER BY partner, currency
