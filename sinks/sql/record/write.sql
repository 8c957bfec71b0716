-- Logs what was staged and moves the deliveries by the rows that were so written.
--
-- An attempt is logged once. Only a takeover's Unknown gives way, to what the worker itself reports later;
-- such a report counts as late. Of a late outcome only a success moves a delivery. Per delivery one outcome
-- decides: a success before a death before a retry, then the highest and latest attempt; so the order within a step
-- does not matter. `may_succeed` and `may_fail` are the states that MOVES lets go there.
WITH logged AS (
    INSERT INTO delivery_log AS log (
        attempt_id, created_at, source, event_id, partner, number, worker, trace_id, started_at, sent_at,
        elapsed_ms, status_code, outcome, reason, may_have_arrived, possible_duplicate, late, excerpt
    )
    SELECT attempt_id, created_at, source, event_id, partner, number, worker, trace_id, started_at, sent_at,
           elapsed_ms, status_code, outcome, reason, may_have_arrived, possible_duplicate, late, excerpt
    FROM outcome_stage
    ON CONFLICT (attempt_id, created_at) DO UPDATE SET
        worker = excluded.worker, trace_id = excluded.trace_id, started_at = excluded.started_at,
        sent_at = excluded.sent_at, recorded_at = now(), elapsed_ms = excluded.elapsed_ms,
        status_code = excluded.status_code, outcome = excluded.outcome, reason = excluded.reason,
        may_have_arrived = excluded.may_have_arrived, possible_duplicate = excluded.possible_duplicate,
        late = true, excerpt = excluded.excerpt
    WHERE log.outcome = 'unknown' AND starts_with(log.reason, %(takeover)s)
      AND NOT (excluded.outcome = 'unknown' AND starts_with(excluded.reason, %(takeover)s))
    RETURNING attempt_id, late
),
decisive AS (
    SELECT DISTINCT ON (stage.source, stage.event_id, stage.partner)
           stage.*,
           max(stage.number - (NOT stage.counted)::integer) OVER delivery AS attempts,
           bool_or(stage.possible_duplicate) OVER delivery AS ever_possible_duplicate
    FROM logged
    JOIN outcome_stage AS stage USING (attempt_id)
    WHERE NOT logged.late OR stage.state = 'succeeded'
    WINDOW delivery AS (PARTITION BY stage.source, stage.event_id, stage.partner)
    ORDER BY stage.source, stage.event_id, stage.partner,
             stage.state = 'succeeded' DESC, stage.state = 'dead' DESC, stage.number DESC, stage.started_at DESC
)
UPDATE delivery
SET status = decisive.state::delivery_status,
    attempts = greatest(delivery.attempts, decisive.attempts),
    unknowns = CASE WHEN decisive.number >= delivery.attempts THEN decisive.unknowns ELSE delivery.unknowns END,
    possible_duplicate = delivery.possible_duplicate OR decisive.ever_possible_duplicate,
    last_status_code = decisive.status_code,
    last_error = CASE WHEN decisive.state = 'succeeded' THEN NULL ELSE decisive.reason END,
    cause = CASE WHEN decisive.state = 'dead' THEN decisive.cause END,
    due_at = CASE WHEN decisive.state = 'retrying' THEN decisive.due_at END,
    fed_generation = CASE
        WHEN decisive.state = 'retrying' THEN decisive.fed_generation ELSE delivery.fed_generation
    END,
    updated_at = now()
FROM decisive
JOIN event USING (source, event_id)
WHERE delivery.event = event.id
  AND delivery.partner = decisive.partner
  AND delivery.status = ANY (
      CASE WHEN decisive.state = 'succeeded' THEN %(may_succeed)s::delivery_status[]
           ELSE %(may_fail)s::delivery_status[] END
  )
