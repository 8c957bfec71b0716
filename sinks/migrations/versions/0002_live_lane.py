"""The live lane: events that wait for the router or found no partner, what a route made of a body, conflicts.

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
-- delivery_due finds it, and no index needs to know the status, which every outcome changes.

-- Live events that have no delivery yet (reason null: they wait for the router), or that a route could not take.
-- Written together with the event, deleted together with its deliveries being written.
CREATE TABLE unrouted (
    event  bigint PRIMARY KEY,
    since  timestamptz NOT NULL DEFAULT now(),
    reason text
);
CREATE INDEX unrouted_waiting ON unrouted (since) WHERE reason IS NULL;

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
    UNIQUE (source, event_id, body_sha256)
);
"""


def upgrade() -> None:
    """Create what the live lane needs."""
    op.execute(TABLES)


def downgrade() -> None:
    """Refuse: accepted events are never dropped by a migration."""
    raise RuntimeError("revision 0002 holds accepted events; drop its tables by hand if you mean it")
