-- The operator's intent, with its audit row; Redis is written from it afterwards.
WITH intent AS (
    INSERT INTO partner_control (partner, paused, who, why)
    SELECT partner, %(paused)s, %(who)s, %(why)s FROM unnest(%(partners)s::text[]) AS named (partner)
    ON CONFLICT (partner) DO UPDATE
    SET paused = excluded.paused, who = excluded.who, why = excluded.why, changed_at = now()
    RETURNING partner
)
INSERT INTO audit (who, action, target, why)
SELECT %(who)s, CASE WHEN %(paused)s THEN 'pause' ELSE 'resume' END, partner, %(why)s FROM intent
