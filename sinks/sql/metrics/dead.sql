-- What is dead now. A cause is there exactly while a delivery is dead; delivery_dead has nothing but those.
SELECT partner, cause, count(*)
FROM delivery
WHERE cause IS NOT NULL AND partner = ANY (%(partners)s)
GROUP BY partner, cause
