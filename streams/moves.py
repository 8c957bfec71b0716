"""What goes into the scripts and what comes out of them."""

from __future__ import annotations

from datetime import timedelta
from enum import IntEnum, StrEnum
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
    """Why a take gave what it gave. All but OPEN come without slots, and BROKEN with one at most, a probe."""

    OPEN = "open"
    CLOSED = "closed"
    PAUSED = "paused"
    BACKED_UP = "backed_up"
    FULL = "full"
    BROKEN = "broken"


class Breaker(msgspec.Struct, frozen=True):
    """When a partner's breaker opens, and how often it is tried while it is open.

    It opens after `failures` in a row (0: never). Probes begin `probe` after that, each wait twice as long up to
    `probe_most`; one that has not been settled `probe_lasts` after its slot is given up. `pause_most` is the longest
    pause that a partner's `Retry-After` can make.
    """

    failures: int = 0
    probe: timedelta = timedelta(seconds=5)
    probe_most: timedelta = timedelta(seconds=60)
    probe_lasts: timedelta = timedelta(seconds=30)
    pause_most: timedelta = timedelta(hours=1)


NO_BREAKER = Breaker()


class Sign(StrEnum):
    """What an attempt's end says about the partner as a whole."""

    NOTHING = ""
    ANSWERED = "answered"
    FAILED = "failed"


class Spared(msgspec.Struct, frozen=True, kw_only=True):
    """How an attempt ends that failed while the breaker was open: it is not counted, and waits in no delay.

    As in `Settlement`, `due_ms` goes with RETRYING.
    """

    state: State
    attempts: int
    unknowns: int
    outcome: bytes
    due_ms: int


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

    `sign` is what the partner's breaker learns of it, `ended_us` (Redis time) when that was, `reason` why it failed.
    `spared` takes the place of the rest where the breaker was open by then. `pause_us` is how long the whole partner
    is to be left alone from now on.
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
    sign: Sign = Sign.NOTHING
    ended_us: int = 0
    reason: str = ""
    spared: Spared | None = None
    pause_us: int = 0


class Settled(msgspec.Struct, frozen=True):
    """For each settlement its id in the outcome stream, and whether it changed nothing since it came late.

    `turned` says what all of it together did to the partner's breaker, to one caller only; None: it stayed.
    """

    outcome_ids: tuple[str, ...]
    late: tuple[bool, ...]
    turned: Literal["opened", "closed"] | None = None


class Feed(msgspec.Struct, frozen=True, kw_only=True):
    """A delivery to be fed. `entry` is `1-<row number>` in a batch's own lane, None elsewhere.

    `ended` are attempts of a delivery that was replayed: that one of them is done keeps it from nothing.
    """

    entry: str | None
    delivery: str
    envelope: bytes
    attempts: int = 0
    unknowns: int = 0
    possible_duplicate: bool = False
    ended: tuple[str, ...] = ()


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


class Withdrawn(IntEnum):
    """What cancelling found: nowhere any more, in a hand that may be sending it, or ended by an attempt."""

    OUT = 0
    IN_HAND = 1
    ENDED = 2


class Released(msgspec.Struct, frozen=True):
    """How many went back to their lanes, and when the next is due (Unix milliseconds, None: none waits)."""

    count: int
    next_due_ms: int | None
