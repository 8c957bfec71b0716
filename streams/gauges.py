"""How much waits where, for status, metrics and recovery. Reads only; one look is not one instant."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime

import msgspec
from redis.asyncio import Redis

from streams.connection import reached
from streams.envelope import Lane, decode
from streams.keys import PartnerKeys
from streams.transit import Transit

_AT_ONCE = 50
_HEADS = 8
"""Lanes of a partner whose first entries are looked at; an entry may be a quarter of a megabyte."""


@dataclass(frozen=True, slots=True)
class LaneGauge:
    """A lane and how many entries it holds, unread and in hand."""

    name: str
    depth: int


@dataclass(frozen=True, slots=True)
class DelayGauge:
    """A delay stream, how many wait in it, and when the first is due."""

    seconds: int
    depth: int
    head_due_ms: int


@dataclass(frozen=True, slots=True)
class BrokenGauge:
    """A breaker that is open: since when, by what, how many failures in a row, when the next probe is due.

    `probing` says that a probe is under way. Times are Redis microseconds.
    """

    since_us: int
    reason: str
    failures: int
    probe_us: int
    probing: bool


@dataclass(frozen=True, slots=True)
class Gauge:
    """A partner's transit. `generation` None: there is no `pace`, all else is empty then.

    `batch` and `live` count the deliveries in lanes, delays and hands; `pending` those in hands.
    `unrecorded` are outcomes that PostgreSQL does not have (those after the entry `recorded`), `dead` the
    entries of the quick look. Until `paused_until_us` the partner asked not to be sent to. `broken` None: the breaker
    is closed.
    """

    generation: int | None
    state: str
    paused: bool
    tat_us: int
    batch: int
    live: int
    pending: int
    unrecorded: int
    recorded: str
    lanes: tuple[LaneGauge, ...]
    delays: tuple[DelayGauge, ...]
    outcomes: int
    dead: int
    paused_until_us: int = 0
    broken: BrokenGauge | None = None


async def gauge(transit: Transit, keys: PartnerKeys) -> Gauge:
    """Look at one partner. Raises `StoreUnavailable`."""
    with reached():
        first = transit.redis.pipeline(transaction=False)
        first.hmget(
            keys.pace,
            *("generation", "state", "paused", "recorded"),
            *("broken_by", "probe"),
            *("tat", "batch", "live", "pending", "added", "counted"),
            *("paused_until", "broken_since", "failures", "probe_next"),
        )
        first.zrange(keys.lanes, 0, -1)
        first.zrange(keys.delays, 0, -1, withscores=True)
        first.xlen(keys.dead)
        pace, lanes, delays, dead = await first.execute()
        generation, state, paused, recorded, reason, probe, *numbers = pace
        tat, batch, live, pending, added, counted, *numbers = (int(number or 0) for number in numbers)
        paused_until, since, failures, probe_next = numbers
        second = transit.redis.pipeline(transaction=False)
        for lane in lanes:
            second.xlen(keys.lane(lane.decode()))
        for seconds, _ in delays:
            second.xlen(keys.delay(int(seconds)))
        second.xlen(keys.outcomes(int(generation or 0)))
        depths: list[int] = await second.execute()
    return Gauge(
        generation=None if generation is None else int(generation),
        state=state.decode() if state else "",
        paused=paused == b"1",
        tat_us=tat,
        batch=batch,
        live=live,
        pending=pending,
        unrecorded=added - counted,
        recorded=recorded.decode() if recorded else "0-0",
        lanes=tuple(LaneGauge(lane.decode(), depth) for lane, depth in zip(lanes, depths, strict=False)),
        delays=tuple(
            DelayGauge(int(seconds), depth, int(due))
            for (seconds, due), depth in zip(delays, depths[len(lanes) :], strict=False)
        ),
        outcomes=depths[-1],
        dead=dead,
        paused_until_us=paused_until,
        broken=BrokenGauge(since, (reason or b"").decode(errors="replace"), failures, probe_next, bool(probe))
        if since
        else None,
    )


@dataclass(frozen=True, slots=True)
class Waiting:
    """A partner's deliveries in lanes, delays and hands, and when the oldest of what stands first was accepted."""

    live: int
    batch: int
    oldest_live: datetime | None
    oldest_batch: datetime | None


async def waiting(transit: Transit, partners: Sequence[PartnerKeys]) -> tuple[Waiting, ...]:
    """What waits for each partner, cheaply: two round trips for 50 of them. Raises `StoreUnavailable`."""
    found: list[Waiting] = []
    for i in range(0, len(partners), _AT_ONCE):
        found += await _waiting(transit, partners[i : i + _AT_ONCE])
    return tuple(found)


async def _waiting(transit: Transit, partners: Sequence[PartnerKeys]) -> list[Waiting]:
    with reached():
        first = transit.redis.pipeline(transaction=False)
        for keys in partners:
            first.hmget(keys.pace, "live", "batch")
            first.zrange(keys.lanes, 0, _HEADS - 1)
            first.zrange(keys.delays, 0, -1)
        answers = await first.execute()
        counts, lanes, delays = answers[0::3], answers[1::3], answers[2::3]
        second = transit.redis.pipeline(transaction=False)
        for keys, names, seconds in zip(partners, lanes, delays, strict=True):
            for name in names:
                second.xrange(keys.lane(name.decode()), count=1)
            for each in seconds:
                second.xrange(keys.delay(int(each)), count=1)
        heads = iter(await second.execute())
    found = []
    for (live, batch), names, seconds in zip(counts, lanes, delays, strict=True):
        oldest: dict[Lane, datetime] = {}
        for _ in range(len(names) + len(seconds)):
            for _, fields in next(heads):
                with suppress(msgspec.MsgspecError):  # of a version that this one cannot read
                    envelope = decode(fields[b"e"])
                    known = oldest.get(envelope.lane, envelope.created_at)
                    oldest[envelope.lane] = min(known, envelope.created_at)
        found.append(Waiting(int(live or 0), int(batch or 0), oldest.get(Lane.LIVE), oldest.get(Lane.BATCH)))
    return found


async def breakers(transit: Transit, partners: Sequence[PartnerKeys]) -> tuple[bool, ...]:
    """Whose breaker is open, in one round trip. Raises `StoreUnavailable`."""
    pipeline = transit.redis.pipeline(transaction=False)
    for keys in partners:
        pipeline.hget(keys.pace, "broken_since")
    with reached():
        answers = await pipeline.execute()
    return tuple(int(since or 0) > 0 for since in answers)


async def now_us(redis: Redis) -> int:
    """Redis `TIME` in microseconds since 1970: the one clock of every worker."""
    with reached():
        seconds, microseconds = await redis.time()
    return seconds * 1_000_000 + microseconds


async def run_id(redis: Redis) -> str:
    """Changes when the server starts again; FLUSHALL keeps it."""
    with reached():
        info = await redis.info("server")
    return str(info["run_id"])
