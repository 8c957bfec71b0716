"""The record of a night's batch: events, deliveries, attempts, batches, generations, workers.

Revision ID: 0001
Revises: none
"""

from __future__ import annotations

from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

TABLES = """
CREATE TYPE delivery_status AS ENUM ('held', 'pending', 'retrying', 'succeeded', 'dead', 'cancelled');
CREATE TYPE batch_state AS ENUM ('running', 'released', 'failed', 'held');

-- What came in, never changed. `body` is what is sent, byte for byte.
CREATE TABLE event (
    id            bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    source        text NOT NULL,
    event_id      text NOT NULL,
    event_type    text NOT NULL,
    routing_key   text NOT NULL DEFAULT '',
    target_uri    text NOT NULL DEFAULT '',
    tenant        text NOT NULL DEFAULT 'default',
    tags          jsonb,
    content_type  text NOT NULL DEFAULT 'application/json',
    body          bytea NOT NULL,
    body_sha256   bytea NOT NULL,
    trace_id      text NOT NULL,
    created_at    timestamptz NOT NULL,
    batch_id      bigint,
    business_date date,
    amount_minor  bigint,
    currency      text,
    order_key     text,
    version       smallint NOT NULL DEFAULT 1,
    UNIQUE (event_id, source)   -- the column that differs first: a fifth off the cost of loading a row
);
-- Rows of a batch lie together: a few kilobytes find them, and loading hardly notices.
CREATE INDEX event_batch ON event USING brin (batch_id) WITH (autosummarize = on);

-- One event for one partner. Narrow: it is what every outcome updates.
-- due_at is set while retrying and null otherwise, so that other updates touch no index.
CREATE TABLE delivery (
    event              bigint NOT NULL,
    partner            text NOT NULL,
    status             delivery_status NOT NULL DEFAULT 'pending',
    possible_duplicate boolean NOT NULL DEFAULT false,
    attempts           smallint NOT NULL DEFAULT 0,
    unknowns           smallint NOT NULL DEFAULT 0,
    row_number         integer,
    fed_generation     integer,
    batch_id           bigint,
    last_status_code   smallint,
    due_at             timestamptz,
    updated_at         timestamptz NOT NULL,
    cause              text,
    last_error         text,
    PRIMARY KEY (event, partner)
) WITH (fillfactor = 80);
CREATE UNIQUE INDEX delivery_batch_order ON delivery (batch_id, partner, row_number) WHERE batch_id IS NOT NULL;
CREATE INDEX delivery_due ON delivery (fed_generation, due_at) WHERE due_at IS NOT NULL;

-- One row per attempt. Partitioned by the event's created_at, as decision 6 says.
CREATE TABLE delivery_log (
    attempt_id         text NOT NULL,
    created_at         timestamptz NOT NULL,
    source             text NOT NULL,
    event_id           text NOT NULL,
    partner            text NOT NULL,
    number             smallint NOT NULL,
    worker             text NOT NULL,
    trace_id           text NOT NULL,
    started_at         timestamptz NOT NULL,
    sent_at            timestamptz,
    recorded_at        timestamptz NOT NULL DEFAULT now(),
    elapsed_ms         integer NOT NULL,
    status_code        smallint,
    outcome            text NOT NULL,
    reason             text NOT NULL,
    may_have_arrived   boolean NOT NULL,
    possible_duplicate boolean NOT NULL,
    late               boolean NOT NULL DEFAULT false,
    excerpt            text NOT NULL DEFAULT '',
    PRIMARY KEY (attempt_id, created_at)
) PARTITION BY RANGE (created_at);
CREATE TABLE delivery_log_default PARTITION OF delivery_log DEFAULT;
CREATE INDEX delivery_log_event ON delivery_log (source, event_id);

CREATE TABLE batch (
    id              bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    job             text NOT NULL,
    business_date   date NOT NULL,
    revision        integer NOT NULL DEFAULT 1,
    state           batch_state NOT NULL DEFAULT 'running',
    lease_owner     text,
    lease_until     timestamptz,
    cut_off         timestamptz,
    expected_count  bigint,
    loaded_count    bigint,
    already_known   bigint,
    ids_sha256      text,
    snapshot_at     timestamptz,
    created_at      timestamptz NOT NULL DEFAULT now(),
    released_at     timestamptz,
    failure         jsonb,
    UNIQUE (job, business_date, revision)
);

-- The manifest: what the source held and what was loaded, per partner and currency.
CREATE TABLE batch_total (
    batch_id       bigint NOT NULL REFERENCES batch (id),
    partner        text NOT NULL,
    currency       text NOT NULL,
    expected_count bigint NOT NULL,
    expected_minor numeric NOT NULL,
    loaded_count   bigint NOT NULL,
    loaded_minor   numeric NOT NULL,
    known_count    bigint NOT NULL DEFAULT 0,   -- loaded by an earlier batch with the same body
    known_minor    numeric NOT NULL DEFAULT 0,
    PRIMARY KEY (batch_id, partner, currency)
);

-- fed_upto is the highest row ever handed to Redis, committed before the hand-over, never lowered.
CREATE TABLE batch_partner (
    batch_id     bigint NOT NULL REFERENCES batch (id),
    partner      text NOT NULL,
    tenant       text NOT NULL DEFAULT 'default',
    rows         integer NOT NULL,
    fed_upto     integer NOT NULL DEFAULT 0,
    fed_complete integer,                       -- the generation in which every row was fed
    finished     boolean NOT NULL DEFAULT false, -- nothing pending was left; who makes rows pending resets it
    PRIMARY KEY (batch_id, partner)
);

CREATE TABLE business_day_run (
    job           text NOT NULL,
    business_date date NOT NULL,
    state         text NOT NULL CHECK (state IN ('claimed', 'done', 'failed')),
    claimed_by    text NOT NULL,
    lease_until   timestamptz NOT NULL,
    due_at        timestamptz NOT NULL,
    started_at    timestamptz NOT NULL DEFAULT now(),
    ended_at      timestamptz,
    attempts      integer NOT NULL DEFAULT 1,
    detail        text NOT NULL DEFAULT '',
    PRIMARY KEY (job, business_date)
);

-- The first business date that the scheduler still answers for: what lies before it is never caught up.
CREATE TABLE schedule_mark (
    job       text PRIMARY KEY,
    next_date date NOT NULL
);

-- One row: which generation Redis must carry, and the run_id for which recovery was finished.
CREATE TABLE generation (
    one        boolean PRIMARY KEY DEFAULT true CHECK (one),
    number     integer NOT NULL DEFAULT 0,
    state      text NOT NULL DEFAULT 'open' CHECK (state IN ('recovering', 'open')),
    run_id     text NOT NULL DEFAULT '',
    suspects   text NOT NULL DEFAULT '',
    changed_at timestamptz NOT NULL DEFAULT now()
);
INSERT INTO generation DEFAULT VALUES;

-- Rows that are only locked, never changed, so that the holder can commit elsewhere meanwhile.
CREATE TABLE row_lock (name text PRIMARY KEY);
INSERT INTO row_lock VALUES ('recovery');

CREATE TABLE worker (
    id           text PRIMARY KEY,
    host         text NOT NULL,
    pid          integer NOT NULL,
    started_at   timestamptz NOT NULL DEFAULT now(),
    heartbeat_at timestamptz NOT NULL DEFAULT now(),
    generation   integer NOT NULL DEFAULT 0,    -- the newest generation under which it handed everything in
    in_flight    integer NOT NULL DEFAULT 0,
    ended_at     timestamptz                    -- left with nothing in hand, or reaped until nothing was pending
);

-- Every partner and generation that ever had outcomes, and how far they are recorded.
CREATE TABLE outcome_offset (
    partner    text NOT NULL,
    tenant     text NOT NULL DEFAULT 'default',
    generation integer NOT NULL,
    last       text NOT NULL DEFAULT '0-0',
    counted    bigint NOT NULL DEFAULT 0,
    updated_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (partner, generation)
);

CREATE TABLE outcome_quarantine (
    partner    text NOT NULL,
    generation integer NOT NULL,
    entry      text NOT NULL,
    data       bytea NOT NULL,
    error      text NOT NULL,
    at         timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (partner, generation, entry)
);

CREATE TABLE partner_control (
    partner    text PRIMARY KEY,
    paused     boolean NOT NULL,
    who        text NOT NULL,
    why        text NOT NULL DEFAULT '',
    changed_at timestamptz NOT NULL DEFAULT now()
);

CREATE TABLE audit (
    id     bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at     timestamptz NOT NULL DEFAULT now(),
    who    text NOT NULL,
    action text NOT NULL,
    target text NOT NULL,
    why    text NOT NULL DEFAULT '',
    detail jsonb
);

CREATE TABLE report_run (
    id            bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    business_date date NOT NULL,
    revision      integer NOT NULL,
    as_of         timestamptz NOT NULL,
    verdict       text NOT NULL,
    directory     text NOT NULL,
    totals        jsonb NOT NULL,
    created_at    timestamptz NOT NULL DEFAULT now(),
    UNIQUE (business_date, revision)
);
"""


def upgrade() -> None:
    """Create everything."""
    op.execute(TABLES)


def downgrade() -> None:
    """Refuse: the record of payments is never dropped by a migration."""
    raise RuntimeError("revision 0001 holds the record of payments; drop the database by hand if you mean it")
