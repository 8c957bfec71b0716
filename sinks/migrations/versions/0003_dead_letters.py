"""Replay, cancel and what somebody found out about a delivery whose outcome was unknown.

Revision ID: 0003
Revises: 0002
"""

from __future__ import annotations

from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

TABLES = """
-- max_attempts and max_age count from the last replay. What was recorded until `cleared_at` did not arrive: somebody
-- asked the partner.
ALTER TABLE delivery
    ADD COLUMN replayed_at     timestamptz,
    ADD COLUMN attempts_before smallint NOT NULL DEFAULT 0,
    ADD COLUMN cleared_at      timestamptz;

-- Deliveries that an operator cancelled, by which audit row, and whether Redis has been told.
CREATE TABLE cancelled (
    event   bigint NOT NULL,
    partner text NOT NULL,
    audit   bigint NOT NULL,
    told    boolean NOT NULL DEFAULT false,
    PRIMARY KEY (event, partner)
);
CREATE INDEX cancelled_audit ON cancelled (audit);
CREATE INDEX cancelled_untold ON cancelled (partner) WHERE NOT told;

INSERT INTO row_lock VALUES ('operator');
"""


def upgrade() -> None:
    """Add what operators' actions need."""
    op.execute(TABLES)


def downgrade() -> None:
    """Refuse: what was cancelled and replayed is part of the record."""
    raise RuntimeError("revision 0003 holds what operators did; drop its columns by hand if you mean it")
