-- Somebody has looked at it; its bytes stay.
WITH settled AS (
    UPDATE conflict SET settled_at = now() WHERE id = %(id)s AND settled_at IS NULL
    RETURNING source, event_id
)
INSERT INTO audit (who, action, target, why)
SELECT %(who)s, 'conflicts settle', source || ':' || event_id, %(why)s FROM settled
