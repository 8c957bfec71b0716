"""How much waits where, for status, metrics and recovery. Reads only; one look is not one instant."""

from __future__ import annotations

from dataclasses import dataclass

from redis.asyncio import Redis

from streams.connection import reached
from streams.keys import PartnerKeys
from streams.transit import Transit


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
class Gauge:
    """A partner's transit. `generation` None: there is no `pace`, all else is empty then.

    `batch` and `live` count the deliveries in lanes, delays and hands; `pending` those in hands.
    `unrecorded` are outcomes that PostgreSQL does not have (those after the entry `recorded`), `dead` the
    entries of the quick look.
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


async def gauge(transit: Transit, keys: PartnerKeys) -> Gauge:
    """Look at one partner. Raises `StoreUnavailable`."""
    with reached():
        first = transit.redis.pipeline(transaction=False)
        first.hmget(
            keys.pace,
            *("generation", "state", "paused", "recorded"),
            *("tat", "batch", "live", "pending", "added", "counted"),
        )
        first.zrange(keys.lanes, 0, -1)
        first.zrange(keys.delays, 0, -1, withscores=True)
        first.xlen(keys.dead)
        pace, lanes, delays, dead = await first.execute()
        generation, state, paused, recorded, *numbers = pace
        tat, batch, live, pending, added, counted = (int(number or 0) for number in numbers)
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
    )


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
