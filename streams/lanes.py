"""Looking at a partner's lanes and delays, and dropping them in recovery. Only scripts move entries."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, cast

from redis.exceptions import ResponseError

from streams.connection import reached
from streams.errors import StaleGeneration, TransitLost
from streams.gauges import now_us
from streams.keys import GROUP, LIVE, PartnerKeys
from streams.moves import Entry, Place
from streams.transit import Transit

if TYPE_CHECKING:
    from redis.asyncio.client import Pipeline

Raw = tuple[bytes, dict[bytes, bytes]]
"""A stream entry as redis-py gives it: id and fields."""

_SCANNED = 1_000
_READ = 5_000


def _entry(lane: str, raw: Raw) -> Entry:
    entry, fields = raw
    return Entry(
        Place(lane, entry.decode()),
        fields[b"d"].decode(),
        int(fields[b"a"]),
        int(fields[b"u"]),
        fields[b"p"] == b"1",
        fields[b"e"],
    )


async def names(transit: Transit, keys: PartnerKeys) -> tuple[str, ...]:
    """The lanes that exist, in the order in which take drains them."""
    with reached():
        found = cast("list[bytes]", await transit.redis.zrange(keys.lanes, 0, -1))
    return tuple(name.decode() for name in found)


async def each(
    transit: Transit, keys: PartnerKeys, ask: Callable[[Pipeline, str], object]
) -> list[tuple[str, object]]:
    """Each lane with the answer to what was asked of it; a lane that was retired meanwhile is left out.

    `ask` queues one command. Raises `TransitLost` where a lane or its group is gone that should be there.
    """
    lanes = await names(transit, keys)
    with reached():
        pipeline = transit.redis.pipeline(transaction=False)
        for lane in lanes:
            ask(pipeline, keys.lane(lane))
        found = list(zip(lanes, await pipeline.execute(raise_on_error=False), strict=True))
    failed = [(lane, reply) for lane, reply in found if isinstance(reply, Exception)]
    there = set(await names(transit, keys)) if failed else set()
    for lane, error in failed:
        if lane in there or not isinstance(error, ResponseError):
            with reached():
                raise error
    return [(lane, reply) for lane, reply in found if not isinstance(reply, Exception)]


async def adopt(transit: Transit, keys: PartnerKeys, *, worker: str) -> tuple[Entry, ...]:
    """Everything pending under this worker, in the order of the lanes.

    After a lost reply: a take that was still on its way may be carried out after this one, so a worker looks
    again some seconds later. Raises `TransitLost` when a group is gone.
    """
    found = await each(transit, keys, lambda pipeline, key: pipeline.xreadgroup(GROUP, worker, {key: "0"}))
    return tuple(
        _entry(lane, raw)
        for lane, reply in found
        for _, entries in cast("list[tuple[bytes, list[Raw]]]", reply)
        for raw in entries
        if raw[1]
    )


async def hands(transit: Transit, keys: PartnerKeys) -> frozenset[str]:
    """Consumers under which anything is pending. Only looks: `adopt` would make it idle from now on again."""
    found = await each(transit, keys, lambda pipeline, key: pipeline.xpending(key, GROUP))
    summaries = [cast("dict[str, list[dict[str, bytes]]]", reply) for _, reply in found]
    return frozenset(consumer["name"].decode() for summary in summaries for consumer in summary["consumers"])


async def emptied(transit: Transit, keys: PartnerKeys) -> tuple[int, ...]:
    """Batches whose lanes exist and hold nothing, in hand or unread."""
    lanes = [lane for lane in await names(transit, keys) if lane != LIVE]
    with reached():
        pipeline = transit.redis.pipeline(transaction=False)
        for lane in lanes:
            pipeline.xlen(keys.lane(lane))
        depths: list[int] = await pipeline.execute()
    held: dict[int, int] = {}
    for lane, depth in zip(lanes, depths, strict=True):
        batch = int(lane.split(":")[1])
        held[batch] = held.get(batch, 0) + depth
    return tuple(batch for batch, depth in held.items() if depth == 0)


async def last_id(transit: Transit, keys: PartnerKeys, lane: str) -> str:
    """How far the lane was ever fed: its last generated id, "0-0" when it is not there."""
    try:
        with reached():
            info = await transit.redis.xinfo_stream(keys.lane(lane))
    except TransitLost:
        return "0-0"
    return bytes(info["last-generated-id"]).decode()


async def open_end(transit: Transit, keys: PartnerKeys, lane: str, *, generation: int) -> str | None:
    """`last_id` of a lane that belongs to this generation; None while the partner is closed.

    Both are one look: only between closing and opening are lanes dropped. Raises `StaleGeneration`.
    """
    pipeline = transit.redis.pipeline(transaction=True)
    pipeline.hmget(keys.pace, "generation", "state")
    pipeline.xinfo_stream(keys.lane(lane))
    with reached():
        (found, state), info = await pipeline.execute(raise_on_error=False)
    if found is None or int(found) != generation:
        raise StaleGeneration(f"{keys.pace} is missing or of another generation")
    if state != b"open":
        return None
    if isinstance(info, ResponseError):  # no such key
        return "0-0"
    return bytes(info["last-generated-id"]).decode()


async def unread(transit: Transit, keys: PartnerKeys, lane: str, *, most: int) -> int:
    """How many entries of the lane nobody has taken yet, counted up to `most`; 0 when it is not there."""
    try:
        with reached():
            groups = await transit.redis.xinfo_groups(keys.lane(lane))
            read = next(
                (g["last-delivered-id"].decode() for g in groups if g["name"] == GROUP.encode()), "0-0"
            )
            found = cast(
                "list[Raw]", await transit.redis.xrange(keys.lane(lane), f"({read}", "+", count=most)
            )
            return len(found)
    except TransitLost:
        return 0


async def groups_intact(transit: Transit, keys: PartnerKeys) -> bool:
    """Whether `pace`, every lane's group and, while anything is under way, `open` and `lanes` are there."""
    with reached():
        pipeline = transit.redis.pipeline(transaction=False)
        pipeline.hmget(keys.pace, "generation", "batch", "live")
        pipeline.exists(keys.open)
        pipeline.zrange(keys.lanes, 0, -1)
        (generation, batch, live), known, lanes = await pipeline.execute()
        if generation is None:
            return False
        under_way = int(batch or 0) + int(live or 0) > 0
        if under_way and not (known and lanes):
            return False
    try:
        found = await each(transit, keys, lambda pipeline, key: pipeline.xinfo_groups(key))
    except TransitLost:
        return False
    groups = (cast("list[dict[str, object]]", reply) for _, reply in found)
    return all(any(group["name"] == GROUP.encode() for group in reply) for reply in groups)


async def drop_transit(transit: Transit, keys: PartnerKeys) -> int:
    """Deletes all that the partner has but `pace` and its outcomes; answers how many keys."""
    kept = f"{keys.base}:outcomes:".encode()
    dropped = 0
    with reached():
        cursor = 0
        while True:
            cursor, found = await transit.redis.scan(cursor, match=keys.every, count=_SCANNED)
            doomed = [
                key
                for key in cast("list[bytes]", found)
                if key != keys.pace.encode() and not key.startswith(kept)
            ]
            if doomed:
                dropped += await transit.redis.unlink(*doomed)
            if cursor == 0:
                return dropped


async def drop_outcomes(transit: Transit, keys: PartnerKeys, *, generation: int) -> bool:
    """Deletes the outcome stream of a generation that is over and recorded to its end."""
    with reached():
        return bool(await transit.redis.delete(keys.outcomes(generation)))


async def suspects(transit: Transit, keys: PartnerKeys, *, first: int) -> frozenset[str]:
    """Deliveries that a worker which did not hand in may have sent.

    Those in hand, those due in a delay, and the `first` unread of each lane.
    """
    found: set[str] = set()
    redis = transit.redis
    now_ms = await now_us(redis) // 1_000
    with reached():
        for lane in await names(transit, keys):
            key = keys.lane(lane)
            groups = [g for g in await redis.xinfo_groups(key) if g["name"] == GROUP.encode()]
            read = groups[0]["last-delivered-id"].decode() if groups else "0-0"
            # What is before the group's last id and still there is pending: settle and give_back delete.
            found |= {_delivery(raw) for raw in await _range(transit, key, "-", read)}
            if first > 0:
                unread = cast("list[Raw]", await redis.xrange(key, f"({read}", "+", count=first))
                found |= {_delivery(raw) for raw in unread}
        for seconds in cast("list[bytes]", await redis.zrangebyscore(keys.delays, "-inf", now_ms)):
            for raw in await _range(transit, keys.delay(int(seconds)), "-", "+"):
                if int(raw[1][b"t"]) > now_ms:
                    break
                found.add(_delivery(raw))
    return frozenset(found)


async def unknown(transit: Transit, keys: PartnerKeys, deliveries: Sequence[str]) -> frozenset[str]:
    """Those of the deliveries that Redis has never heard of, or has forgotten."""
    found: set[str] = set()
    for i in range(0, len(deliveries), _SCANNED):
        some = list(deliveries[i : i + _SCANNED])
        with reached():
            where = cast("list[bytes | None]", await transit.redis.hmget(keys.open, some))
        found |= {delivery for delivery, place in zip(some, where, strict=True) if place is None}
    return frozenset(found)


def _delivery(raw: Raw) -> str:
    return raw[1][b"d"].decode()


async def _range(transit: Transit, key: str, start: str, end: str) -> list[Raw]:
    """The whole of a range, read in pieces."""
    found: list[Raw] = []
    while True:
        piece = cast("list[Raw]", await transit.redis.xrange(key, start, end, count=_READ))
        found += piece
        if len(piece) < _READ:
            return found
        start = f"({piece[-1][0].decode()}"
