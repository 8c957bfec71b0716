-- An event's deliveries. due_at of one that is pending only says that Redis may not have it yet.
SELECT partner, status::text, possible_duplicate, CASE WHEN status = 'retrying' THEN due_at END
FROM delivery
WHERE event = %(event)s
ORDER BY partner
