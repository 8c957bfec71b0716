-- A statement of its own: it sees what was recorded while pick waited for a lock.
UPDATE chosen
SET arrived = true
FROM delivery AS d
JOIN event AS e ON e.id = d.event
WHERE d.event = chosen.event AND d.partner = chosen.partner
  AND (d.possible_duplicate OR d.cause = %(unknown)s OR (d.attempts > 0 OR d.status <> 'pending' OR d.replayed_at IS NOT NULL) AND EXISTS (
      SELECT FROM delivery_log AS l
      WHERE l.source = e.source AND l.event_id = e.event_id AND l.partner = d.partner AND l.may_have_arrived
        AND (d.cleared_at IS NULL OR l.recorded_at > d.cleared_at)
  ))
