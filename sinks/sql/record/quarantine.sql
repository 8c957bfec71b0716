INSERT INTO outcome_quarantine (partner, generation, entry, data, error)
VALUES (%(partner)s, %(generation)s, %(entry)s, %(data)s, %(error)s)
ON CONFLICT (partner, generation, entry) DO NOTHING
