"""Live events on their way in: accepted once, kept in the inbound shards until a router has dealt with them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import date, datetime, timedelta
from decimal import Decimal
from enum import IntEnum
from typing import TYPE_CHECKING, cast

import msgspec

from streams.connection import reached
from streams.envelope import VERSION, Envelope, Lane
from streams.keys import ROUTERS, InboundKeys
from streams.transit import Transit

if TYPE_CHECKING:
    from redis.asyncio.client import Pipeline


class Inbound(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A live event as it was accepted, before anybody knows its partners.

    `payload` is the bytes that the sender means for the partner, `body_sha256` (32 bytes) the hash of the whole
    request (or line) without white space at its ends: the same id with another hash is a conflict. `trace_id`
    is 32 hex digits, `created_at` the moment of acceptance by Redis's clock, UTC.
    """

    event_id: str
    event_type: str
    source: str
    tenant: str
    payload: bytes
    body_sha256: bytes
    trace_id: str
    created_at: datetime
    content_type: str = "application/json"
    routing_key: str = ""
    target_uri: str = ""
    tags: dict[str, str] = msgspec.field(default_factory=dict)
    business_date: date | None = None
    amount: Decimal | None = None
    currency: str | None = None
    order_key: str | None = None
    version: int = VERSION

    def to_partner(self, partner: str, *, payload: bytes | None = None, target_uri: str = "") -> Envelope:
        """The envelope for one partner; `payload` where a route reshapes it, `target_uri` where it names one."""
        return Envelope(
            event_id=self.event_id,
            event_type=self.event_type,
            source=self.source,
            partner=partner,
            payload=self.payload if payload is None else payload,
            trace_id=self.trace_id,
            created_at=self.created_at,
            updated_at=self.created_at,
            lane=Lane.LIVE,
            content_type=self.content_type,
            routing_key=self.routing_key,
            target_uri=target_uri,
            tags=self.tags,
            tenant=self.tenant,
            business_date=self.business_date,
            amount=self.amount,
            currency=self.currency,
            order_key=self.order_key,
        )


_MILLISECOND = timedelta(milliseconds=1)
_ANSWER_S = 3.0
"""What a read that blocks may take longer than it blocks."""

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Inbound)
encode = _encoder.encode


def decode(data: bytes) -> Inbound:
    """The event back. Raises `msgspec.ValidationError` or `msgspec.DecodeError` for anything else."""
    return _decoder.decode(data)


class Verdict(IntEnum):
    """What became of one event, as `ingest.lua` spells it."""

    ACCEPTED = 0
    DUPLICATE = 1
    CONFLICT = 2


_VERDICTS = tuple(Verdict)


class Accepted(msgspec.Struct, frozen=True):
    """`trace_id` is that of the event as it came first."""

    verdict: Verdict
    trace_id: str


class Ingested(msgspec.Struct, frozen=True):
    """One answer for each event, in order, and Redis's time in microseconds."""

    answers: tuple[Accepted, ...]
    now_us: int


class Waiting(msgspec.Struct, frozen=True):
    """An inbound entry in a router's hand."""

    shard: InboundKeys
    entry: str
    data: bytes


class Depth(msgspec.Struct, frozen=True):
    """How many events wait for a router over all shards, and since when the oldest does (Unix ms, None: none)."""

    waiting: int
    oldest_ms: int | None


async def ingest(transit: Transit, events: Sequence[Inbound], *, remember: Sequence[timedelta]) -> Ingested:
    """Mark and enqueue each event, or say how it was seen before; one round trip for all.

    Raises `StoreUnavailable` where Redis is away and `StoreFull` at its memory limit: any of the events may have been
    accepted then (the limit can be reached between two shards), and a second try finds those as duplicates. With no
    events it asks whether there is room.
    """
    shards = transit.keys.inbound
    places: dict[InboundKeys, list[int]] = {}
    if len(shards) == 1 or not events:
        places[shards[0]] = list(range(len(events)))
    else:
        for i, event in enumerate(events):
            places.setdefault(transit.keys.inbound_of(event.source, event.event_id), []).append(i)
    replies = await transit.scripts.ingest(
        transit.wire,
        [
            (
                [shard.stream, *(shard.seen(events[i].source, events[i].event_id) for i in some)],
                [_argument(events[i], remember[i]) for i in some],
            )
            for shard, some in places.items()
        ],
    )
    answers: list[Accepted | None] = [None] * len(events)
    for some, reply in zip(places.values(), replies, strict=True):
        for n, i in enumerate(some):
            verdict, trace_id = cast("int", reply[1 + 2 * n]), cast("bytes", reply[2 + 2 * n])
            answers[i] = Accepted(_VERDICTS[verdict], trace_id.decode())
    return Ingested(tuple(answer for answer in answers if answer is not None), cast("int", replies[-1][0]))


def _argument(event: Inbound, remember: timedelta) -> bytes:
    """Hash, trace id, how long to remember in ms, and the event: one argument, since each costs packing."""
    remember_ms = max(1, remember // _MILLISECOND)
    return b"%b%b%013d%b" % (event.body_sha256, event.trace_id.encode(), remember_ms, encode(event))


async def seen(transit: Transit, source: str, event_id: str) -> str | None:
    """The trace id of an event that was accepted within its source's `remember`; None: not that we know."""
    with reached():
        mark = cast(
            "bytes | None",
            await transit.redis.get(transit.keys.inbound_of(source, event_id).seen(source, event_id)),
        )
    return None if mark is None else mark[32:].decode()


async def read(transit: Transit, *, router: str, limit: int, block: timedelta) -> tuple[Waiting, ...]:
    """Up to `limit` fresh entries of each shard for this router; waits up to `block` (at most 2 s) for the first.

    Raises `TransitLost` where a shard or its group is missing (`make_groups` mends that), and `StoreUnavailable`.
    """
    shards = transit.keys.inbound
    with reached():
        async with asyncio.timeout(block.total_seconds() + _ANSWER_S):
            reply = await transit.waiting.xreadgroup(
                ROUTERS,
                router,
                {shard.stream: ">" for shard in shards},
                count=limit,
                block=max(1, block // _MILLISECOND),
            )
    by_stream = {shard.stream.encode(): shard for shard in shards}
    return tuple(
        Waiting(by_stream[stream], entry.decode(), fields[b"e"])
        for stream, entries in cast("list[tuple[bytes, list[tuple[bytes, dict[bytes, bytes]]]]]", reply)
        for entry, fields in entries
    )


async def make_groups(transit: Transit) -> int:
    """Make the shards and groups that are missing, also at the memory limit; answers how many.

    From the beginning: a routed entry is deleted, so whatever is in a shard is still to be routed.
    """
    return sum([await transit.scripts.make_group(shard.stream) for shard in transit.keys.inbound])


async def claim(transit: Transit, *, router: str, idle: timedelta, limit: int) -> tuple[Waiting, ...]:
    """Entries that another router has had for longer than `idle`: it is dead, or routing them twice harms nobody.

    Raises `TransitLost` and `StoreUnavailable`.
    """
    found: list[Waiting] = []
    for shard in transit.keys.inbound:
        with reached():
            reply = await transit.redis.xautoclaim(
                shard.stream,
                ROUTERS,
                router,
                min_idle_time=idle // timedelta(milliseconds=1),
                start_id="0-0",
                count=limit,
            )
        found += [
            Waiting(shard, entry.decode(), fields[b"e"])
            for entry, fields in cast("list[tuple[bytes, dict[bytes, bytes]]]", reply[1])
        ]
    return tuple(found)


async def routed(transit: Transit, entries: Sequence[Waiting]) -> None:
    """These are dealt with: out of the shards. A second time changes nothing. Raises `StoreUnavailable`."""
    by_shard: dict[InboundKeys, list[str]] = {}
    for entry in entries:
        by_shard.setdefault(entry.shard, []).append(entry.entry)
    pipeline: Pipeline = transit.redis.pipeline(transaction=False)
    for shard, ids in by_shard.items():
        # In this order: should only the first be heard, a claim clears away what is in a hand and gone.
        pipeline.xdel(shard.stream, *ids)
        pipeline.xack(shard.stream, ROUTERS, *ids)
    with reached():
        await pipeline.execute()


async def depth(transit: Transit) -> Depth:
    """How much waits for a router. Raises `StoreUnavailable`."""
    pipeline = transit.redis.pipeline(transaction=False)
    for shard in transit.keys.inbound:
        pipeline.xlen(shard.stream)
        pipeline.xrange(shard.stream, count=1)
    with reached():
        replies = await pipeline.execute()
    heads = [int(head[0][0].split(b"-")[0]) for head in replies[1::2] if head]
    return Depth(sum(replies[0::2]), min(heads, default=None))
