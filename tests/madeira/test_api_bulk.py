"""Many events in one request: a line is answered for itself, in its place."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

import msgspec
import pytest

from pipelines.live_source import LiveSource
from tests.madeira.desk import QUICK, SHOP, Desk, desk, event, raw, signed

BOTH = pytest.mark.parametrize("source", [SHOP, QUICK], ids=["postgres", "redis"])


@pytest.fixture
async def api(database_url: str, redis_url: str, key_prefix: str) -> AsyncIterator[Desk]:
    """The API with both stores; each source may send 100,000 events a second."""
    sources = [replace(source, rate=100_000) for source in (SHOP, QUICK)]
    async with desk(database_url, redis_url, key_prefix, sources=sources) as found:
        yield found


@BOTH
async def test_a_bad_line_hides_no_good_one(api: Desk, source: LiveSource) -> None:
    """Each line has its answer, in order, with its number; empty lines are skipped and counted."""
    large = event("4", order_key="x" * source.max_body)
    lines = [
        event("1"),
        b"",
        event("1"),
        event("1", routing_key="B"),
        b"{",
        large,
        b" \r",
        event("5") + b"\r",
        b"",
    ]
    reply = await api.bulk(lines, source=source.name)
    assert (reply.status, reply.headers["content-type"]) == (200, "application/x-ndjson")
    assert [(line["line"], line.get("code", line["status"])) for line in reply.lines()] == [
        (1, "accepted"),
        (3, "duplicate"),
        (4, 409),
        (5, 400),
        (6, 413),
        (8, "accepted"),
    ]
    assert {line["title"] for line in reply.lines() if line["status"] == "refused"} == {
        "The same id came with another body",
        "The event has mistakes",
        "The body is too large",
    }
    assert sorted(entry.event_id for entry in await api.entries()) == ["1", "5"]
    counted = [
        api.counted.events[source.name, kind] for kind in (f"accepted {source.durability}", "format", "size")
    ]
    assert counted == [2, 1, 1]


@BOTH
async def test_ten_thousand_lines(api: Desk, source: LiveSource) -> None:
    """The most that one request may bring; all are stored, in the order of the lines within a shard."""
    ids = [str(n) for n in range(10_000)]
    reply = await api.bulk([*map(event, ids), b""], source=source.name)
    assert [line["event_id"] for line in reply.lines() if line["status"] == "accepted"] == ids
    entries = [entry.event_id for entry in await api.entries()]
    shards = [entries.index(event_id) for event_id in ids[:100]]
    assert len(shards) == 100
    by_shard: dict[str, list[int]] = {}
    for entry in await api.entries():
        shard = api.transit.keys.inbound_of(source.name, entry.event_id).stream
        by_shard.setdefault(shard, []).append(int(entry.event_id))
    assert all(found == sorted(found) for found in by_shard.values())
    assert sum(map(len, by_shard.values())) == 10_000


async def test_one_line_too_many(api: Desk) -> None:
    """10,001 lines are refused as a whole."""
    reply = await api.bulk([b"{}"] * 10_001)
    assert (reply.status, reply.problem()) == (413, "size")


async def test_sixteen_megabytes_are_the_end(api: Desk) -> None:
    """A larger body is refused before it is read."""
    headers = [
        *signed(b""),
        ("Content-Length", str((16 << 20) + 1)),
        ("Content-Type", "application/x-ndjson"),
    ]
    reply = await api.say(raw("POST", "/v1/events/bulk", headers))
    assert (reply.status, reply.problem()) == (413, "size")


async def test_one_signature_over_all(api: Desk) -> None:
    """The whole body is signed; a wrong signature stores nothing of it."""
    body = b"\n".join([event("1"), event("2")])
    reply = await api.post(body, path="/v1/events/bulk", content_type="application/x-ndjson", key=b"wrong")
    assert reply.status == 401
    assert await api.entries() == []


async def test_lines_above_the_rate_are_the_last(api: Desk) -> None:
    """What is over the rate is refused with 429 from the first such line on, so that the order can be kept."""
    api.api.adopt({"shop": replace(SHOP, rate=700)})
    codes = [line.get("code", 0) for line in (await api.bulk(map(event, map(str, range(2000))))).lines()]
    assert len(codes) == 2000
    assert codes == sorted(codes)
    assert codes.count(429) > 0
    assert codes.count(0) >= 700


async def test_each_line_has_its_own_trace(api: Desk) -> None:
    """A traceparent header is of the request; one trace of ten thousand payments would trace nothing."""
    body = b"\n".join([event("1"), event("2"), event("3", trace_id="a" * 32)])
    parent = ("traceparent", f"00-{'b' * 32}-{'c' * 16}-01")
    reply = await api.post(body, parent, path="/v1/events/bulk", content_type="application/x-ndjson")
    traces = [line["trace_id"] for line in reply.lines()]
    assert len(set(traces)) == 3
    assert traces[2] == "a" * 32
    assert "b" * 32 not in traces


@pytest.mark.parametrize("body", [b"", b"\n\n \n"])
async def test_no_lines_at_all(api: Desk, body: bytes) -> None:
    """Nothing asked, nothing answered."""
    reply = await api.post(body, path="/v1/events/bulk", content_type="application/x-ndjson")
    assert (reply.status, reply.body) == (200, b"")


async def test_lines_of_mistakes_stay_bounded_and_let_others_in(api: Desk) -> None:
    """Of 500 lines with 60 mistakes each the answer names a thousand, and at least one of each line; whoever else is
    served by this process has a turn after each such line."""
    line = (
        b'{"event_id":"1","event_type":"t","payload":1' + b"".join(b',"k%d":1' % i for i in range(60)) + b"}"
    )
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    waiting = asyncio.create_task(others())
    reply = await api.bulk([line] * 500)
    waiting.cancel()
    assert turns >= 500
    named = [len(msgspec.convert(found["errors"], list[object])) for found in reply.lines()]
    assert len(named) == 500
    assert min(named) == 1
    assert named[0] == 50
    assert sum(named) <= 1_500
    assert all(str(found["detail"]).endswith("and 49 more") for found in reply.lines())
