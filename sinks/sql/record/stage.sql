-- The session's landing place for one step's outcomes; empty again at every commit.
-- Numbers are wide here, so that one that does not fit is refused when it is logged, not cut off on the way.
CREATE TEMPORARY TABLE IF NOT EXISTS outcome_stage (
    attempt_id         text PRIMARY KEY,
    source             text NOT NULL,
    event_id           text NOT NULL,
    partner            text NOT NULL,
    created_at         timestamptz NOT NULL,
    number             bigint NOT NULL,
    unknowns           bigint NOT NULL,
    worker             text NOT NULL,
    trace_id           text NOT NULL,
    started_at         timestamptz NOT NULL,
    sent_at            timestamptz,
    elapsed_ms         bigint NOT NULL,
    status_code        bigint,
    outcome            text NOT NULL,
    reason             text NOT NULL,
    may_have_arrived   boolean NOT NULL,
    possible_duplicate boolean NOT NULL,
    excerpt            text NOT NULL,
    state              text NOT NULL,
    cause              text,
    due_at             timestamptz,
    late               boolean NOT NULL,
    fed_generation     bigint,             -- where its retry waits in Redis; null: nowhere, sweep feeds it when due
    counted            boolean NOT NULL    -- an attempt of `max_attempts`
) ON COMMIT DELETE ROWS
