-- An event's attempts, in their order for each partner.
SELECT partner, number, sent_at, status_code, outcome, reason, may_have_arrived
FROM delivery_log
WHERE source = %(source)s AND event_id = %(event_id)s
ORDER BY partner, number, started_at
LIMIT 10000
