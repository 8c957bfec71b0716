-- What can't be read may have been a send, and what has no outcome in PostgreSQL is fed again by the next recovery.
WITH flagged AS (
    UPDATE delivery SET possible_duplicate = true, updated_at = now()
    FROM event
    WHERE event.source = %(source)s AND event.event_id = %(event_id)s
      AND delivery.event = event.id AND delivery.partner = %(partner)s
      AND NOT delivery.possible_duplicate
)
INSERT INTO outcome_quarantine (partner, generation, entry, data, error)
VALUES (%(partner)s, %(generation)s, %(entry)s, %(data)s, %(error)s)
ON CONFLICT (partner, generation, entry) DO NOTHING
