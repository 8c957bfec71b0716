"""The HTTP API: what a sender with a right signature is told, and who else is told nothing."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from decimal import Decimal
from hashlib import sha256

import msgspec
import pytest

from madeira.embedded_server import free_port
from madeira.embedded_valkey import PrivateValkey
from pipelines.live_source import LiveSource
from tests.madeira.desk import KEY, QUICK, SHOP, Desk, Reply, desk, event, hear, raw, signed

BOTH = pytest.mark.parametrize("source", [SHOP, QUICK], ids=["postgres", "redis"])


@pytest.fixture
async def api(database_url: str, redis_url: str, key_prefix: str) -> AsyncIterator[Desk]:
    """The API with both stores."""
    async with desk(database_url, redis_url, key_prefix) as found:
        yield found


@BOTH
async def test_an_event_is_accepted_once(api: Desk, source: LiveSource) -> None:
    """202 accepted, then duplicate, then 409 for another body; the trace id is the first one's all along."""
    first = await api.post(event("1"), source=source.name)
    again = await api.post(b" \n" + event("1") + b"\r\n", source=source.name)
    other = await api.post(event("1", routing_key="B"), source=source.name)
    assert [first.status, again.status, other.status] == [202, 202, 409]
    trace_id = first.json()["trace_id"]
    assert first.json() == {"status": "accepted", "event_id": "1", "trace_id": trace_id}
    assert again.json() == {"status": "duplicate", "event_id": "1", "trace_id": trace_id}
    assert other.problem() == "conflict"
    assert other.json()["trace_id"] == trace_id
    assert {reply.headers["x-trace-id"] for reply in (first, again, other)} == {trace_id}
    assert [entry.event_id for entry in await api.entries()] == ["1"]
    kinds = [f"accepted {source.durability}", f"duplicate {source.durability}", "conflict"]
    assert [api.counted.events[source.name, kind] for kind in kinds] == [1, 1, 1]


async def test_everything_that_an_event_says_is_kept(api: Desk) -> None:
    """Each key of the envelope arrives as it was meant; the payload's bytes exactly as they stood."""
    payload = b'{"b" :1.10, "a":12345678901234567890123456789012345,\t"a":1e400, "e":"\\u00e9\xc3\xa9"}'
    body = (
        b'{"event_id":"p-1","event_type":"payment.created","payload": ' + payload + b' ,"routing_key":"AB",'
        b'"target_uri":"https://ab.example/x?y=1","tags":{"region":"sh"},"business_date":"2026-03-31",'
        b'"amount":1.50,"currency":"EUR","order_key":"k","content_type":"application/vnd.x+json; a=b",'
        b'"trace_id":"ABCDEF0123456789abcdef0123456789","source":"quick"}'
    )
    reply = await api.post(body, source="quick")
    assert reply.status == 202, reply.body
    [entry] = await api.entries()
    assert entry.payload == payload
    assert entry.body_sha256 == sha256(body).digest()
    assert entry.trace_id == reply.headers["x-trace-id"] == "abcdef0123456789abcdef0123456789"
    assert (entry.source, entry.tenant, entry.event_type) == ("quick", "default", "payment.created")
    assert (entry.routing_key, entry.target_uri) == ("AB", "https://ab.example/x?y=1")
    assert (entry.tags, str(entry.business_date)) == ({"region": "sh"}, "2026-03-31")
    assert (entry.amount, entry.currency, entry.order_key) == (Decimal("1.50"), "EUR", "k")
    assert entry.content_type == "application/vnd.x+json; a=b"
    assert abs(entry.created_at.timestamp() - time.time()) < 60


async def test_any_bytes_can_be_sent(api: Desk) -> None:
    """`payload_base64` carries what is not JSON; its content type is the sender's."""
    body = event("1", payload_base64="AP8K", content_type="application/octet-stream").replace(
        b'"payload":{},', b""
    )
    assert (await api.post(body)).status == 202
    [entry] = await api.entries()
    assert (entry.payload, entry.content_type) == (b"\x00\xff\n", "application/octet-stream")


async def test_a_trace_is_taken_up(api: Desk) -> None:
    """A valid traceparent gives the trace id, one that is not is ignored, the event's own wins."""
    trace = "0af7651916cd43dd8448eb211c80319c"
    parent = ("traceparent", f"00-{trace}-b7ad6b7169203331-01")
    assert (await api.post(event("1"), parent)).headers["x-trace-id"] == trace
    made = (await api.post(event("2"), ("traceparent", f"00-{'0' * 32}-b7ad6b7169203331-01"))).headers
    assert made["x-trace-id"] not in (trace, "0" * 32)
    assert (await api.post(event("3", trace_id="f" * 32), parent)).headers["x-trace-id"] == "f" * 32


async def test_any_secret_of_the_source_fits(api: Desk) -> None:
    """While a secret rotates the old and the new one are right, also as one of several signatures."""
    api.api.adopt({"shop": replace(SHOP, keys=(b"new", KEY))})
    assert (await api.post(event("1"), key=b"new")).status == 202
    assert (await api.post(event("2"), key=KEY)).status == 202
    headers = signed(event("3"), key=b"gone")
    both = f"{headers[2][1]}, {signed(event('3'))[2][1].upper()}"
    body = event("3")
    length = ("Content-Length", str(len(body)))
    request = raw("POST", "/v1/events", [*headers[:2], ("Madeira-Signature", both), length], body)
    assert (await api.say(request)).status == 202
    assert (await api.post(event("4"), key=b"gone")).status == 401


async def test_who_is_unknown_and_who_signs_wrongly_hear_the_same(api: Desk) -> None:
    """The answer does not say whether a source exists, whatever its size limit; and nothing of a secret."""
    replies = [
        await api.post(event("1"), source="nobody"),
        await api.post(event("1"), key=b"wrong"),
        await api.post(event("1", order_key="x" * 9000), source="nobody"),
        await api.post(event("1", order_key="x" * 9000), key=b"wrong"),
    ]
    assert {reply.status for reply in replies} == {401}
    assert len({reply.body for reply in replies}) == 1
    assert {reply.problem() for reply in replies} == {"signature"}
    assert all(KEY not in reply.body for reply in replies)
    assert {reply.headers["www-authenticate"] for reply in replies} == {"Madeira-Signature"}


async def test_a_source_without_keys_lets_nobody_in(api: Desk) -> None:
    """No secret is not the empty secret."""
    api.api.adopt({"shop": replace(SHOP, keys=())})
    assert (await api.post(event("1"), key=b"")).status == 401


async def test_a_source_whose_secret_is_not_set_is_told_to_come_back(api: Desk) -> None:
    """503 with Retry-After, not a refusal for good."""
    reply = await api.post(event("1"), source="unready")
    assert (reply.status, reply.problem(), reply.headers["retry-after"]) == (503, "not-ready", "60")


async def test_two_hundred_posts_of_one_event(api: Desk) -> None:
    """Together they are one 202 accepted and 199 duplicates, and one entry."""
    replies = await asyncio.gather(*(api.post(event("same")) for _ in range(200)))
    assert Counter((reply.status, reply.json()["status"]) for reply in replies) == {
        (202, "accepted"): 1,
        (202, "duplicate"): 199,
    }
    assert len(await api.entries()) == 1


async def test_above_its_rate_a_source_waits(api: Desk) -> None:
    """429 with Retry-After once the rate is used up; wrong signatures use nothing; others go on."""
    api.api.adopt({"shop": replace(SHOP, rate=3), "quick": QUICK})
    for _ in range(10):
        assert (await api.post(event("1"), key=b"wrong")).status == 401
    replies = [await api.post(event(str(n))) for n in range(60)]
    over = [reply for reply in replies if reply.status == 429]
    assert {reply.status for reply in replies} == {202, 429}
    assert [reply.status for reply in replies[:3]] == [202, 202, 202]
    assert {(reply.problem(), reply.headers["retry-after"]) for reply in over} == {("rate", "1")}
    assert (await api.post(event("1"), source="quick")).status == 202


async def test_a_share_below_one_a_second_says_how_long_that_is(
    database_url: str, redis_url: str, key_prefix: str
) -> None:
    """Of two events a second a fifth process has one in 2.5 seconds: after 2 it would only say no again."""
    sources = [replace(SHOP, rate=2)]
    async with desk(database_url, redis_url, key_prefix, sources=sources, processes=5) as api:
        assert (await api.post(event("1"))).status == 202
        over = await api.post(event("2"))
        assert (over.status, over.headers["retry-after"]) == (429, "3")


async def test_a_body_beyond_its_source_is_too_large(api: Desk) -> None:
    """413 above the source's own limit, and exactly at the limit it is taken."""
    whole = event("1", order_key="")
    assert (
        await api.post(
            whole.replace(b"{}", b" " * (4096 - len(whole)) + b"{}").replace(
                b',"order_key":""', b"              "
            )
        )
    ).status == 202
    reply = await api.post(event("2") + b" " * 4096)
    assert (reply.status, reply.problem()) == (413, "size")


async def test_a_lookup_says_where_an_event_is(api: Desk) -> None:
    """200 with its state for the source that sent it; 404 for what is not there, and for everybody else."""
    trace_id = (await api.post(event("a.b:c"))).headers["x-trace-id"]
    reply = await api.get("/v1/events/a.b%3Ac?x=1")
    assert reply.status == 200
    assert reply.headers["x-trace-id"] == trace_id
    accepted_at = str(reply.json()["accepted_at"])
    assert reply.json() == {
        "event_id": "a.b:c",
        "source": "shop",
        "trace_id": trace_id,
        "status": "waiting",
        "event_type": "payment.created",
        "accepted_at": accepted_at,
        "deliveries": [],
    }
    others = [
        await api.get("/v1/events/a.b:c", source="quick"),
        await api.get("/v1/events/nothing", source="quick"),
        await api.get("/v1/events/%00%20", source="quick"),
    ]
    assert {(reply.status, reply.problem()) for reply in others} == {(404, "not-found")}
    assert len({reply.body for reply in others}) == 1
    assert (await api.get("/v1/events/a.b:c", key=b"wrong")).status == 401


async def test_the_query_is_signed_too(api: Desk) -> None:
    """What was signed without its query proves nothing about a path with one."""
    await api.post(event("1"))
    headers = signed(b"/v1/events/1")
    assert (await api.say(raw("GET", "/v1/events/1", headers))).status == 200
    assert (await api.say(raw("GET", "/v1/events/1?x=1", headers))).status == 401


async def test_what_only_redis_has_is_found(api: Desk) -> None:
    """An event that waits for its first write to the record is waiting, not unknown."""
    await api.post(event("1"), source="quick")
    reply = await api.get("/v1/events/1", source="quick")
    assert (reply.status, reply.json()["status"]) == (200, "waiting")


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/healthz", 200),
        ("HEAD", "/healthz", 200),
        ("GET", "/readyz", 200),
        ("GET", "/metrics", 200),
        ("GET", "/openapi.json", 200),
        ("GET", "http://madeira/healthz?x=1", 200),
        ("POST", "/healthz", 405),
        ("GET", "/v1/events", 405),
        ("DELETE", "/v1/events/1", 405),
        ("GET", "/", 404),
        ("GET", "/v1/events2", 404),
        ("OPTIONS", "*", 404),
    ],
)
async def test_paths_and_methods(api: Desk, method: str, path: str, status: int) -> None:
    """Each path says what it takes; what is not there is a problem, too."""
    reply = await api.say(raw(method, path, []))
    assert reply.status == status
    if status >= 400:
        assert reply.problem() in ("method", "not-found")
    if status == 405:
        assert reply.headers["allow"] in ("POST", "GET, HEAD")


async def test_stores_that_are_away_are_named(key_prefix: str) -> None:
    """503 with Retry-After for events, and `/readyz` says which store it is; the process lives."""
    database_url = f"postgresql://nobody@127.0.0.1:{free_port()}/x"
    async with desk(database_url, f"redis://127.0.0.1:{free_port()}", key_prefix) as api:
        ready = await api.say(raw("GET", "/readyz", []))
        assert (ready.status, ready.json()["away"]) == (503, ["postgres_away", "redis_away"])
        assert (await api.say(raw("GET", "/healthz", []))).status == 200
        replies = [
            await api.post(event("1")),
            await api.post(event("1"), source="quick"),
            await api.get("/v1/events/1"),
            await api.bulk([event("1"), event("2")]),
        ]
        assert {(reply.status, reply.problem()) for reply in replies} == {(503, "store")}
        assert all(int(reply.headers["retry-after"]) > 0 for reply in replies)
        assert api.counted.events["shop", "store"] == 3


async def test_a_full_redis_takes_nothing(
    database_url: str, private_valkey: PrivateValkey, key_prefix: str
) -> None:
    """At its memory limit both durabilities are refused with 503, and nothing is written down."""
    async with desk(database_url, private_valkey.url, key_prefix) as api:
        await api.transit.redis.config_set("maxmemory", "1mb")
        replies = [await api.post(event("1")), await api.post(event("1"), source="quick")]
        assert {(reply.status, reply.problem()) for reply in replies} == {(503, "full")}
        assert await api.sql("SELECT count(*) FROM event") == [(0,)]


async def test_leaving_finishes_what_is_under_way(database_url: str, redis_url: str, key_prefix: str) -> None:
    """A request whose body was still coming is answered; the next one on an open connection hears 503."""
    async with desk(database_url, redis_url, key_prefix) as api:
        slow = await asyncio.open_connection("127.0.0.1", api.port)
        open_one = await asyncio.open_connection("127.0.0.1", api.port)
        body = event("1")
        request = raw("POST", "/v1/events", [*signed(body), ("Content-Length", str(len(body)))], body)
        open_one[1].write(raw("GET", "/readyz", []))
        assert (await hear(open_one[0])).status == 200
        slow[1].write(
            raw(
                "POST",
                "/v1/events",
                [*signed(body), ("Content-Length", str(len(body))), ("Expect", "100-continue")],
            )
        )
        assert (await slow[0].readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 100")
        stopping = asyncio.create_task(api.listener.stop(timedelta(seconds=60)))
        open_one[1].write(raw("GET", "/healthz", []))
        await hear(open_one[0])  # by now `stop` has begun
        open_one[1].write(request)
        reply = await hear(open_one[0])
        assert (reply.status, reply.problem(), reply.headers["connection"]) == (503, "leaving", "close")
        assert reply.headers["retry-after"] == "1"
        assert not stopping.done()
        slow[1].write(body)
        assert (await hear(slow[0])).status == 202
        await stopping
        for _, writer in (slow, open_one):
            writer.close()
        with pytest.raises(OSError):
            await api.say(raw("GET", "/healthz", []))


async def test_leaving_is_bounded(database_url: str, redis_url: str, key_prefix: str) -> None:
    """A request that does not end in time is broken off."""
    async with desk(database_url, redis_url, key_prefix) as api:
        reader, writer = await asyncio.open_connection("127.0.0.1", api.port)
        writer.write(
            raw("POST", "/v1/events", [*signed(b""), ("Content-Length", "9"), ("Expect", "100-continue")])
        )
        await reader.readuntil(b"\r\n\r\n")
        async with asyncio.timeout(60):
            await api.listener.stop(timedelta(milliseconds=10))
            with suppress(ConnectionError):
                assert await reader.read() == b""
        writer.close()


async def test_only_so_many_connections(database_url: str, redis_url: str, key_prefix: str) -> None:
    """One more than the limit is told so and let go; when one ends there is room again."""
    async with desk(database_url, redis_url, key_prefix, most_connections=1) as api:
        reader, writer = await asyncio.open_connection("127.0.0.1", api.port)
        writer.write(raw("GET", "/healthz", []))
        assert (await hear(reader)).status == 200
        extra, extra_writer = await asyncio.open_connection("127.0.0.1", api.port)
        assert (await hear(extra)).status == 503
        assert await extra.read() == b""
        extra_writer.close()
        writer.close()
        await reader.read()
        async with asyncio.timeout(60):
            reply = Reply(503, {}, b"")
            while reply.status == 503:
                reply = await api.say(raw("GET", "/healthz", []))


async def test_a_changed_source_takes_effect(api: Desk) -> None:
    """From the next request on; one that is gone is unknown."""
    assert (await api.post(event("1"))).status == 202
    api.api.adopt({"shop": replace(SHOP, keys=(b"other",))})
    assert (await api.post(event("2"))).status == 401
    assert (await api.post(event("2"), key=b"other")).status == 202
    api.api.adopt({})
    assert (await api.post(event("3"), key=b"other")).status == 401


async def test_the_openapi_document_is_served_whole(api: Desk) -> None:
    """It is OpenAPI 3.1 and has each path that is served."""
    found = msgspec.json.decode((await api.say(raw("GET", "/openapi.json", []))).body)
    assert found["openapi"] == "3.1.0"
    assert set(found["paths"]) == {
        "/v1/events",
        "/v1/events/bulk",
        "/v1/events/{event_id}",
        "/healthz",
        "/readyz",
        "/metrics",
        "/openapi.json",
    }
