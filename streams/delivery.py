"""The life of a delivery: its states, what moves it, and how one attempt ended.

A delivery is (source, event_id, partner). `MOVES` is the only place that says which state follows which;
PostgreSQL's `delivery.status` changes by it and by nothing else.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from enum import StrEnum

import msgspec


class State(StrEnum):
    """Where a delivery is. `DELIVERING` is shown from Redis while a send is in flight and never stored."""

    HELD = "held"
    PENDING = "pending"
    DELIVERING = "delivering"
    RETRYING = "retrying"
    SUCCEEDED = "succeeded"
    DEAD = "dead"
    CANCELLED = "cancelled"


class Move(StrEnum):
    """What can happen to a delivery. The first four come from settle, the others from people.

    `CONFIRM`: the partner was asked, and has it. `DOUBT`: a send that was under way when it was cancelled may have
    arrived.
    """

    SUCCEED = "succeed"
    RETRY = "retry"
    GIVE_UP = "give_up"
    LATE_SUCCESS = "late_success"
    RELEASE = "release"
    REPLAY = "replay"
    CANCEL = "cancel"
    CONFIRM = "confirm"
    DOUBT = "doubt"


MOVES: dict[State, dict[Move, State]] = {
    State.HELD: {Move.RELEASE: State.PENDING, Move.CANCEL: State.CANCELLED},
    State.PENDING: {
        Move.SUCCEED: State.SUCCEEDED,
        Move.LATE_SUCCESS: State.SUCCEEDED,
        Move.RETRY: State.RETRYING,
        Move.GIVE_UP: State.DEAD,
        Move.CANCEL: State.CANCELLED,
    },
    State.RETRYING: {
        Move.SUCCEED: State.SUCCEEDED,
        Move.LATE_SUCCESS: State.SUCCEEDED,
        Move.RETRY: State.RETRYING,
        Move.GIVE_UP: State.DEAD,
        Move.CANCEL: State.CANCELLED,
    },
    State.SUCCEEDED: {},
    State.DEAD: {
        Move.LATE_SUCCESS: State.SUCCEEDED,
        Move.CONFIRM: State.SUCCEEDED,
        Move.REPLAY: State.PENDING,
        Move.CANCEL: State.CANCELLED,
    },
    State.CANCELLED: {Move.LATE_SUCCESS: State.SUCCEEDED, Move.DOUBT: State.DEAD},
}

TERMINAL = frozenset({State.SUCCEEDED, State.DEAD, State.CANCELLED})


class Cause(StrEnum):
    """Why a delivery is dead, in the words that an operator filters by."""

    REFUSED = "refused"
    ATTEMPTS_EXHAUSTED = "attempts_exhausted"
    TOO_OLD = "too_old"
    UNKNOWN = "unknown_confirm_first"
    NOT_DELIVERED = "not_delivered"
    """Somebody asked the partner, who does not have it."""


class Succeeded(msgspec.Struct, frozen=True, tag="succeeded"):
    """The partner has it."""

    reason: str


class Retry(msgspec.Struct, frozen=True, tag="retry"):
    """The partner does not have it, or may not: send again later.

    `after` is the partner's own `Retry-After`, None where it gave none. `pauses`: it is meant for everything that
    goes to the partner, and the attempt is not counted.
    """

    reason: str
    may_have_arrived: bool
    after: timedelta | None = None
    pauses: bool = False


class Dead(msgspec.Struct, frozen=True, tag="dead"):
    """The partner said no for good."""

    reason: str
    may_have_arrived: bool = False


class Unknown(msgspec.Struct, frozen=True, tag="unknown"):
    """Nobody can say whether the partner has it; it may have arrived."""

    reason: str


WORKER_DIED = "worker died"
"""The reason of a takeover's Unknown; a late outcome of the same attempt replaces it."""

Outcome = Succeeded | Retry | Dead | Unknown


class Kind(StrEnum):
    """An outcome's name as it is written into `delivery_log.outcome`."""

    SUCCEEDED = "succeeded"
    RETRY = "retry"
    DEAD = "dead"
    UNKNOWN = "unknown"


class Attempt(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """One attempt as settle writes it into the outcome stream and the recorder into PostgreSQL.

    Times are UTC and come from Redis `TIME`. `state` is where the delivery goes by this attempt:
    succeeded, retrying or dead. `attempt_id` is `partner/generation/lane/entry`, one per stream entry.
    `number` counts from 1. `sent_at` is when the headers left; None when nothing left this machine.
    Not `counted`: the partner asked for a pause, or its breaker was open; the next one has the same number.
    """

    attempt_id: str
    source: str
    event_id: str
    partner: str
    created_at: datetime
    number: int
    unknowns: int
    worker: str
    trace_id: str
    started_at: datetime
    sent_at: datetime | None
    elapsed_ms: int
    status_code: int | None
    outcome: Kind
    reason: str
    may_have_arrived: bool
    possible_duplicate: bool
    excerpt: str
    state: State
    cause: Cause | None = None
    due_at: datetime | None = None
    version: int = 1
    counted: bool = True
