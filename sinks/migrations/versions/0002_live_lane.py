"""The live lane: events that wait for the router or found no partner, what a route made of a body, conflicts.

What waits for its time is found per lane: live deliveries by partner, since each has its own mark.

Revision ID: 0002
Revises: 0001
"""

from __future__ import annotations

from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

TABLES = """
-- A live delivery that Redis may not have carries due_at from its beginning, until its first outcome: so that
-- delivery_live_due finds it, and no index needs to know the status, which every outcome changes.
-- fed_generation of one that is pending: null, it was never handed to Redis; n, it was in generation n, or the entry
-- that the router has in hand is a second witness; -n, perhaps in generation n: sweep hands it over once more.
DROP INDEX delivery_due;
CREATE INDEX delivery_due ON delivery (fed_generation, due_at) WHERE due_at IS NOT NULL AND batch_id IS NOT NULL;
CREATE INDEX delivery_live_due ON delivery (partner, fed_generation, due_at)
    WHERE due_at IS NOT NULL AND batch_id IS NULL;

-- Live events that have no delivery yet (reason null: they wait for the router), or that a route could not take.
-- Written together with the event, deleted together with its deliveries being written.
CREATE TABLE unrouted (
    event  bigint PRIMARY KEY,
    since  timestamptz NOT NULL DEFAULT now(),
    reason text
);
CREATE INDEX unrouted_waiting ON unrouted (since) WHERE reason IS NULL;

-- Deliveries that are dead: these alone have a cause, so that no other outcome touches this index.
CREATE INDEX delivery_dead ON delivery (partner, cause) WHERE cause IS NOT NULL;

-- What a route made for one delivery, where that differs from the event: fixed when it was routed.
CREATE TABLE reshaped (
    event      bigint NOT NULL,
    partner    text NOT NULL,
    target_uri text NOT NULL DEFAULT '',
    body       bytea,                    -- null: the event's own
    PRIMARY KEY (event, partner)
);

-- The same id with another body, after its first was accepted: somebody must look at it. Never sent.
CREATE TABLE conflict (
    id          bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    source      text NOT NULL,
    event_id    text NOT NULL,
    tenant      text NOT NULL,
    event_type  text NOT NULL,
    trace_id    text NOT NULL,
    body        bytea NOT NULL,
    body_sha256 bytea NOT NULL,
    at          timestamptz NOT NULL DEFAULT now(),
    settled_at  timestamptz,                -- somebody has looked at it
    UNIQUE (source, event_id, body_sha256)
);

-- Inbound entries that cannot be read, or that this database refuses.
CREATE TABLE inbound_quarantine (
    shard  text NOT NULL,
    entry  text NOT NULL,
    data   bytea NOT NULL,
    error  text NOT NULL,
    at     timestamptz NOT NULL DEFAULT now(),
    digest bytea GENERATED ALWAYS AS (sha256(data)) STORED,
    PRIMARY KEY (shard, entry, digest)   -- a Redis that lost everything may give an id again
);
"""


def upgrade() -> None:
    """Create what the live lane needs."""
    op.execute(TABLES)


def downgrade() -> None:
    """Refuse: accepted events are never dropped by a migration."""
    raise RuntimeError("revision 0002 holds accepted events; drop its tables by hand if you mean it")
