"""Live events on their way in, on a real server."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from hashlib import sha256

import pytest

from streams.errors import TransitLost
from streams.inbound import (
    Inbound,
    Verdict,
    claim,
    decode,
    depth,
    encode,
    ingest,
    make_groups,
    read,
    routed,
    seen,
)
from streams.transit import Transit

AT = datetime(2026, 3, 2, 9, 30, tzinfo=UTC)
HOUR = timedelta(hours=1)
MOMENT = timedelta(milliseconds=1)


def event(event_id: str, body: bytes = b"{}") -> Inbound:
    """An event whose request was its payload."""
    return Inbound(
        event_id=event_id,
        event_type="payment.created",
        source="shop",
        tenant="default",
        payload=body,
        body_sha256=sha256(body).digest(),
        trace_id=sha256(event_id.encode() + body).hexdigest()[:32],
        created_at=AT,
    )


def test_an_event_comes_back_as_it_was() -> None:
    """What is enqueued is what the router reads."""
    full = Inbound(
        **{**{f: getattr(event("1"), f) for f in Inbound.__struct_fields__}, "tags": {"region": "sh"}}
    )
    assert decode(encode(full)) == full


async def test_an_id_is_accepted_once(transit: Transit) -> None:
    """The second is a duplicate with the first one's trace id, another body a conflict; one entry waits."""
    first = await ingest(transit, [event("1"), event("2")], remember=[HOUR, HOUR])
    again = await ingest(transit, [event("1"), event("1", b"[]"), event("3")], remember=[HOUR] * 3)
    assert [answer.verdict for answer in first.answers] == [Verdict.ACCEPTED, Verdict.ACCEPTED]
    assert [answer.verdict for answer in again.answers] == [
        Verdict.DUPLICATE,
        Verdict.CONFLICT,
        Verdict.ACCEPTED,
    ]
    assert again.answers[0].trace_id == again.answers[1].trace_id == event("1").trace_id
    assert (await depth(transit)).waiting == 3
    assert await seen(transit, "shop", "1") == event("1").trace_id
    assert await seen(transit, "shop", "4") is None


async def test_two_hundred_at_once_are_one(transit: Transit) -> None:
    """However many come at the same moment, one is accepted."""
    answers = await asyncio.gather(*(ingest(transit, [event("1")], remember=[HOUR]) for _ in range(200)))
    verdicts = [answer.answers[0].verdict for answer in answers]
    assert (verdicts.count(Verdict.ACCEPTED), verdicts.count(Verdict.DUPLICATE)) == (1, 199)
    assert (await depth(transit)).waiting == 1


async def test_a_router_reads_each_entry_and_deletes_it(transit: Transit) -> None:
    """What is routed is gone; a second time changes nothing."""
    await ingest(transit, [event(str(n)) for n in range(20)], remember=[HOUR] * 20)
    await make_groups(transit)
    found = await read(transit, router="a", limit=100, block=MOMENT)
    assert sorted(decode(entry.data).event_id for entry in found) == sorted(str(n) for n in range(20))
    await routed(transit, found)
    await routed(transit, found)
    assert (await depth(transit)).waiting == 0
    assert await read(transit, router="a", limit=100, block=MOMENT) == ()


async def test_what_a_dead_router_had_is_claimed(transit: Transit) -> None:
    """An entry that was read and not routed goes to who asks for it, none that is fresh in a hand."""
    await ingest(transit, [event("1")], remember=[HOUR])
    await make_groups(transit)
    await read(transit, router="a", limit=100, block=MOMENT)
    assert await claim(transit, router="b", idle=HOUR, limit=10) == ()
    [taken] = await claim(transit, router="b", idle=timedelta(0), limit=10)
    assert decode(taken.data).event_id == "1"


async def test_a_lost_group_is_made_from_the_beginning(transit: Transit) -> None:
    """All that still is in a shard is still to be routed, also what was in somebody's hand."""
    await ingest(transit, [event("1")], remember=[HOUR])
    await make_groups(transit)
    await read(transit, router="a", limit=100, block=MOMENT)
    shard = transit.keys.inbound_of("shop", "1")
    await transit.redis.xgroup_destroy(shard.stream, "routers")
    with pytest.raises(TransitLost):
        await read(transit, router="a", limit=100, block=MOMENT)
    assert await make_groups(transit) == 1
    [again] = await read(transit, router="a", limit=100, block=MOMENT)
    assert decode(again.data).event_id == "1"
