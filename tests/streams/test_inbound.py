"""Live events on their way in, on a real server."""

from __future__ import annotations

import asyncio
from collections import Counter
from datetime import UTC, datetime, timedelta
from hashlib import sha256

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from madeira.embedded_valkey import PrivateValkey
from streams.errors import StoreFull, StoreUnavailable, TransitLost
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
from tests.lossy import Lossy

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


async def test_an_id_is_known_for_as_long_as_its_source_says(transit: Transit) -> None:
    """Each mark of one call has a lifetime of its own."""
    await ingest(transit, [event("1"), event("2")], remember=[HOUR, 6 * HOUR])
    marks = [transit.keys.inbound_of("shop", n).seen("shop", n) for n in ("1", "2")]
    left = [timedelta(milliseconds=await transit.redis.pttl(mark)) for mark in marks]
    assert left[0] <= HOUR < 5 * HOUR < left[1] <= 6 * HOUR
    assert left[0] > HOUR / 2


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


IDS = st.sampled_from("abcdefgh")
STEPS = st.one_of(
    st.tuples(st.just("ingest"), st.lists(st.tuples(IDS, st.sampled_from([b"{}", b"[]"])), max_size=6)),
    st.tuples(st.just("expire"), IDS),
    st.tuples(st.just("route"), st.integers(1, 3)),
    st.tuples(st.just("scripts lost"), st.none()),
)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=st.lists(STEPS, max_size=12))
async def test_marks_and_entries_agree(transit: Transit, steps: list[tuple[str, object]]) -> None:
    """Whatever happens: each acceptance has made one mark and one entry, and nothing else has made any."""
    async for key in transit.redis.scan_iter(match=f"{transit.keys.prefix}:*"):
        await transit.redis.delete(key)
    await make_groups(transit)
    marks: dict[str, Inbound] = {}
    entries: Counter[str] = Counter()
    for step, what in steps:
        if step == "ingest":
            assert isinstance(what, list)
            events = [event(*one) for one in what]
            answers = (await ingest(transit, events, remember=[HOUR] * len(events))).answers
            for one, answer in zip(events, answers, strict=True):
                first = marks.setdefault(one.event_id, one)
                same = Verdict.DUPLICATE if first.body_sha256 == one.body_sha256 else Verdict.CONFLICT
                assert answer.verdict is (Verdict.ACCEPTED if first is one else same)
                assert answer.trace_id == first.trace_id
                entries[one.event_id] += first is one
        elif step == "expire":
            assert isinstance(what, str)
            marks.pop(what, None)
            await transit.redis.delete(transit.keys.inbound_of("shop", what).seen("shop", what))
        elif step == "route":
            assert isinstance(what, int)
            found = await read(transit, router="a", limit=what, block=MOMENT)
            await routed(transit, found)
            entries.subtract(decode(entry.data).event_id for entry in found)
        else:
            await transit.redis.script_flush()
        for name in "abcdefgh":
            known = marks.get(name)
            assert await seen(transit, "shop", name) == (None if known is None else known.trace_id)
        assert (await depth(transit)).waiting == entries.total()
    left = Counter[str]()
    for shard in transit.keys.inbound:
        left.update(decode(fields[b"e"]).event_id for _, fields in await transit.redis.xrange(shard.stream))
    assert left == +entries


async def test_a_full_redis_takes_neither_mark_nor_entry(
    private_valkey: PrivateValkey, key_prefix: str
) -> None:
    """At the memory limit nothing is accepted, asking for room says so, and what is there can be routed."""
    transit = Transit.open(private_valkey.url, key_prefix)
    try:
        await ingest(transit, [event("1")], remember=[HOUR])
        await transit.redis.config_set("maxmemory", 1)
        for events in ([event("2"), event("3")], []):
            with pytest.raises(StoreFull):
                await ingest(transit, events, remember=[HOUR] * len(events))
        assert await seen(transit, "shop", "2") is None
        await make_groups(transit)
        await routed(transit, await read(transit, router="a", limit=10, block=MOMENT))
        assert (await depth(transit)).waiting == 0
        await transit.redis.config_set("maxmemory", 0)
        [answer] = (await ingest(transit, [event("2")], remember=[HOUR])).answers
        assert answer.verdict is Verdict.ACCEPTED
    finally:
        await transit.close()


async def test_an_emptied_redis_begins_anew(private_valkey: PrivateValkey, key_prefix: str) -> None:
    """After FLUSHALL an event is accepted again, and whoever comes first makes the group that routers need."""
    transit = Transit.open(private_valkey.url, key_prefix)
    try:
        await ingest(transit, [event("1")], remember=[HOUR])
        await transit.redis.flushall()
        with pytest.raises(TransitLost):
            await read(transit, router="a", limit=10, block=MOMENT)
        [answer] = (await ingest(transit, [event("1")], remember=[HOUR])).answers
        assert answer.verdict is Verdict.ACCEPTED
        await make_groups(transit)
        [entry] = await read(transit, router="a", limit=10, block=MOMENT)
        assert decode(entry.data) == event("1")
    finally:
        await transit.close()


async def test_a_lost_answer_is_a_duplicate_the_second_time(redis_url: str, key_prefix: str) -> None:
    """The client repeats nothing by itself; who tries again is told that the event is there, once."""
    async with Lossy(redis_url) as way:
        transit = Transit.open(way.url, key_prefix)
        try:
            await ingest(transit, [], remember=[])
            way.lose_answer_to(b":seen:shop:1")
            with pytest.raises(StoreUnavailable):
                await ingest(transit, [event("1")], remember=[HOUR])
            [answer] = (await ingest(transit, [event("1")], remember=[HOUR])).answers
            assert answer.verdict is Verdict.DUPLICATE
            assert (await depth(transit)).waiting == 1
        finally:
            await transit.close()


async def test_a_mark_ends_with_what_its_source_remembers(transit: Transit) -> None:
    """A mark lives as long as it was told, never less than a millisecond."""
    await ingest(transit, [event("1"), event("2")], remember=[HOUR, timedelta(0)])
    mark = transit.keys.inbound_of("shop", "1").seen("shop", "1")
    assert 0 < await transit.redis.pttl(mark) <= 3_600_000
    assert (await depth(transit)).waiting == 2


@pytest.mark.parametrize("lost", [b"XDEL", b"XACK"])
async def test_what_is_routed_goes_whatever_part_of_it_is_heard(
    redis_url: str, key_prefix: str, lost: bytes
) -> None:
    """An entry that is neither in a hand nor to be read would wait for ever, and no router would ever see it."""
    transit = Transit.open(redis_url, key_prefix)
    async with Lossy(redis_url) as way:
        through = Transit.open(way.url, key_prefix)
        await ingest(transit, [event("1")], remember=[HOUR])
        await make_groups(transit)
        entries = await read(transit, router="one", limit=10, block=MOMENT)
        way.cut_before(lost)
        with pytest.raises(StoreUnavailable):
            await routed(through, entries)
        again = await claim(transit, router="two", idle=timedelta(0), limit=10)
        if again:
            await routed(transit, again)
        assert (await depth(transit)).waiting == 0
        assert await claim(transit, router="three", idle=timedelta(0), limit=10) == ()
        await through.close()
    await transit.close()
