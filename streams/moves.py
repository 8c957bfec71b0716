"""What goes into the scripts and what comes out of them."""

from __future__ import annotations

from enum import StrEnum
from typing import Literal

import msgspec

from streams.delivery import State


class Place(msgspec.Struct, frozen=True, gc=False):
    """Where an entry is: the lane's short name (`live`, `batch:7`, `batch:7:returns`) and its stream id."""

    lane: str
    entry: str

    def attempt_id(self, partner: str, generation: int) -> str:
        """`partner/generation/lane/entry`: names the one attempt that this entry is for."""
        return f"{partner}/{generation}/{self.lane}/{self.entry}"


class Entry(msgspec.Struct, frozen=True):
    """One delivery as it waits or is in hand. `attempts` and `unknowns` count those before the next send."""

    place: Place
    delivery: str
    attempts: int
    unknowns: int
    possible_duplicate: bool
    envelope: bytes


class Slot(msgspec.Struct, frozen=True):
    """A send that may begin at `start_us` (Redis time, microseconds); `entry` is None when it was held."""

    place: Place
    start_us: int
    entry: Entry | None


class PaceState(StrEnum):
    """Why a take gave what it gave. All but OPEN come without slots."""

    OPEN = "open"
    CLOSED = "closed"
    PAUSED = "paused"
    BACKED_UP = "backed_up"
    FULL = "full"


class Take(msgspec.Struct, frozen=True):
    """Slots in the order of their starts. Times are Redis microseconds.

    `next_us` is when asking again makes sense. `recorded` is the id in `outcomes:<generation>` up to which
    PostgreSQL has everything.
    """

    state: PaceState
    now_us: int
    next_us: int
    recorded: str
    slots: tuple[Slot, ...]


class Settlement(msgspec.Struct, frozen=True, kw_only=True):
    """How one attempt ended. `state` is SUCCEEDED, RETRYING or DEAD.

    `attempts`, `unknowns` and `possible_duplicate` are as the next attempt shall see them; `delay_s` and
    `due_ms` (Unix milliseconds) go with RETRYING. `outcome` is what the recorder reads, opaque here.
    """

    place: Place
    delivery: str
    attempt_id: str
    state: State
    attempts: int
    unknowns: int
    possible_duplicate: bool
    outcome: bytes
    delay_s: int | None = None
    due_ms: int | None = None


class Settled(msgspec.Struct, frozen=True):
    """For each settlement its id in the outcome stream, and whether it changed nothing since it came late."""

    outcome_ids: tuple[str, ...]
    late: tuple[bool, ...]


class Feed(msgspec.Struct, frozen=True, kw_only=True):
    """A delivery to be fed. `entry` is `1-<row number>` in a batch's own lane, None elsewhere."""

    entry: str | None
    delivery: str
    envelope: bytes
    attempts: int = 0
    unknowns: int = 0
    possible_duplicate: bool = False


class Fed(msgspec.Struct, frozen=True):
    """`skipped` are those that Redis has already; they count as dealt with."""

    fed: int
    skipped: int


class Refused(msgspec.Struct, frozen=True):
    """Nothing was fed (moved by ids out of order: the rows before them were). `last` is the lane's last id.

    moved: the lane is not where the caller believes; too_old: `read_at_us` is over 10 s ago; closed: recovery
    is at work; full: Redis is at its memory limit.
    """

    reason: Literal["moved", "too_old", "closed", "full"]
    last: str


class Released(msgspec.Struct, frozen=True):
    """How many went back to their lanes, and when the next is due (Unix milliseconds, None: none waits)."""

    count: int
    next_due_ms: int | None
