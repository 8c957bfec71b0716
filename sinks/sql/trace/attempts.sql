SELECT partner, number, started_at, sent_at, elapsed_ms, status_code, outcome, reason, may_have_arrived,
       possible_duplicate, late, worker, attempt_id, excerpt
FROM delivery_log
WHERE source = %(source)s AND event_id = %(event_id)s AND partner = %(partner)s
ORDER BY partner, number, started_at
