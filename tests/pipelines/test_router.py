"""The router on real servers: each accepted event becomes its deliveries once, whatever dies in between."""

from __future__ import annotations

import asyncio
import os
import re
import secrets
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from hashlib import sha256

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from madeira.embedded_valkey import PrivateValkey
from pipelines import deliveries
from pipelines.route import Addressed, Route, Routed
from pipelines.router import Router, Step
from sinks.partner import Partner
from sinks.pool import borrow
from sinks.statement import statement
from streams import inbound
from streams.delivery import State
from streams.envelope import decode
from streams.inbound import depth
from streams.keys import ROUTERS
from streams.marks import Marks
from tests.pipelines.live import HOUR, MOMENT, NOW_ISH, TO_KEY, Live, event, live
from tests.pipelines.night import attempt, night, settlement

LATER = NOW_ISH + timedelta(days=1)
NO_TIME = timedelta(0)


@pytest.fixture
async def post(database_url: str, redis_url: str, key_prefix: str) -> AsyncIterator[Live]:
    """Partners AB and CD in generation 1; an event goes where its routing key says."""
    async with night(database_url, redis_url, key_prefix) as stores:
        found = live(stores)
        await found.router.step(1, block=MOMENT)
        yield found


async def unrouted(post: Live) -> list[tuple[object, ...]]:
    """Events that wait or go nowhere, with the reason."""
    return await post.night.sql(
        "SELECT event_id, reason FROM unrouted JOIN event ON event.id = event ORDER BY event_id"
    )


@pytest.mark.parametrize("durable", [True, False], ids=["postgres", "redis"])
async def test_an_event_arrives_as_it_came(post: Live, *, durable: bool) -> None:
    """Its bytes, trace id and acceptance are those of the request; the shard is empty and nothing waits."""
    one = msgspec.structs.replace(
        event("1", body=b'{"b":1, "a":0.10, "a":2}', tags={"region": "sh"}),
        amount=Decimal("10.50"),
        currency="CZK",
        order_key="o",
    )
    await (post.accept if durable else post.enqueue)(one)
    assert await post.router.step(1, block=MOMENT) == Step(1, fed=frozenset({"AB"}))
    [entry] = await post.take()
    got = decode(entry.envelope)
    assert (got.payload, got.trace_id, got.created_at) == (one.payload, one.trace_id, one.created_at)
    assert (got.tags, got.amount, got.currency, got.order_key) == (one.tags, one.amount, "CZK", "o")
    assert await post.deliveries() == [("1", "AB", "pending", 1)]
    assert (await depth(post.night.transit)).waiting == 0
    assert await unrouted(post) == []
    assert await post.night.sql(
        "SELECT body, body_sha256, amount_minor, tags->>'region', batch_id FROM event"
    ) == [(one.payload, one.body_sha256, 1050, "sh", None)]


async def test_one_event_to_several_partners(post: Live) -> None:
    """Each partner gets it once, with the body that its route makes; the record keeps what was made."""
    both = [Route("all", ("AB",), event_types=("payment.*",)), Route("short", ("AB", "CD"), body="n")]
    router = Router(post.night.pool, post.night.transit, post.night.partners, both)
    await post.accept(event("1"))
    assert (await router.step(1, block=MOMENT)).fed == {"AB", "CD"}
    [whole], [short] = await post.take(), await post.take(name="CD")
    assert (decode(whole.envelope).payload, decode(short.envelope).payload) == (b'{"n": 1.0}', b"1.0")
    assert await post.night.sql("SELECT partner, body, target_uri FROM reshaped") == [("CD", b"1.0", "")]


async def test_an_event_that_no_route_takes_is_kept(post: Live) -> None:
    """It is unroutable, with the reason; later routes take it, and tell what a try would do before."""
    await post.accept(event("1", "ZZ"), event("2"))
    await post.enqueue(event("3", "ZZ"))
    assert await post.routed() == 3
    why = "route to-key, ZZ: no partner ZZ in tenant default"
    assert await unrouted(post) == [("1", why), ("3", why)]
    assert await post.lane() == ["2"]
    post.router.adopt([Route("rest", ("CD",), routing_keys=("Z*",), event_types=("payment.created",))])
    assert await post.router.again(who="ops", dry_run=True) == Step(2)
    assert len(await unrouted(post)) == 2
    assert await post.router.again(who="ops") == Step(2)
    assert await unrouted(post) == []
    assert await post.night.feeder.sweep(1, LATER) == 2
    assert await post.lane("CD") == ["1", "3"]
    assert await post.night.sql("SELECT who, action, detail->>'routed' FROM audit") == [
        ("ops", "unroutable route", "2")
    ]
    assert await post.router.again(who="ops") == Step()


async def test_what_one_route_cannot_send_hinders_no_other(post: Live) -> None:
    """The partner whose body can be made gets it; what could not be is listed, and made once the route is mended."""
    router = Router(
        post.night.pool,
        post.night.transit,
        post.night.partners,
        [Route("ab", ("AB",)), Route("cd", ("CD",), body="nothing")],
    )
    await post.accept(event("1"))
    assert (await router.step(1, block=MOMENT)).unroutable == 1
    [(_, why)] = await unrouted(post)
    assert str(why).startswith("route cd, CD: ")
    assert [row[1] for row in await post.deliveries()] == ["AB"]
    router.adopt([Route("ab", ("AB",), body="n"), Route("cd", ("CD",), body="n")])
    assert await router.again(who="ops") == Step(1)
    assert [row[1] for row in await post.deliveries()] == ["AB", "CD"]
    assert await post.night.sql("SELECT partner FROM reshaped") == [("CD",)], (
        "AB's was fixed when it was routed"
    )


async def test_the_same_id_with_another_body_is_a_conflict(post: Live) -> None:
    """Where Redis forgot the first one: the second is put aside with its bytes and never sent, a third not again."""
    await post.enqueue(event("1"))
    await post.routed()
    for body in (b"[]", b"[]", b'{"n": 1.0}'):
        shard = post.night.transit.keys.inbound_of("shop", "1")
        await post.night.transit.redis.delete(shard.seen("shop", "1"))
        await post.enqueue(event("1", body=body))
    done = Step()
    while (step := await post.router.step(1, block=MOMENT)).events:
        done += step
    assert done == Step(3, conflicts=2)
    assert await post.lane() == ["1"]
    assert await post.night.sql("SELECT source, event_id, body, body_sha256 FROM conflict") == [
        ("shop", "1", b"[]", sha256(b"[]").digest())
    ]


async def test_a_duplicate_that_redis_forgot_keeps_the_first_acceptance(post: Live) -> None:
    """The journal goes by the first trace id and time, whichever entry is read when."""
    first = event("1")
    await post.record(first)
    again = msgspec.structs.replace(first, trace_id="f" * 32, created_at=LATER)
    await post.enqueue(again)
    await post.routed()
    [entry] = await post.take()
    assert (decode(entry.envelope).trace_id, decode(entry.envelope).created_at) == (
        first.trace_id,
        first.created_at,
    )


async def test_what_cannot_be_read_or_written_stops_nobody(post: Live) -> None:
    """It is kept with its bytes; the events beside it go their way."""
    shard = post.night.transit.keys.inbound[0]
    await post.enqueue(*[event(str(n)) for n in range(9)])
    bad = event("bad", body=b"{}", event_type="nul\x00")
    huge = msgspec.structs.replace(event("huge"), amount=Decimal("0.001"), currency="CZK")
    await post.enqueue(bad, huge)
    await post.night.transit.redis.xadd(shard.stream, {"e": b"\xff nonsense"})
    done = Step()
    while (step := await post.router.step(1, block=MOMENT)).events:
        done += step
    assert done == Step(12, quarantined=3, fed=frozenset({"AB"}))
    assert sorted(await post.lane()) == [str(n) for n in range(9)]
    kept = {data for (data,) in await post.night.sql("SELECT data FROM inbound_quarantine")}
    assert kept == {b"\xff nonsense", inbound.encode(bad), inbound.encode(huge)}
    assert (await depth(post.night.transit)).waiting == 0


async def test_several_routers_route_each_event_once(post: Live) -> None:
    """At the same time, with claims of what another one has in hand: one delivery each, fed once."""
    await post.accept(*[event(str(n)) for n in range(150)])
    await post.enqueue(*[event(f"r{n}", "CD") for n in range(150)])
    routers = [Router(post.night.pool, post.night.transit, post.night.partners, [TO_KEY]) for _ in range(4)]

    async def work(router: Router) -> None:
        while (await router.step(1, block=MOMENT)).events:
            await router.claim(1, idle=NO_TIME)

    await asyncio.gather(*(work(router) for router in routers))
    for router in routers:
        await router.claim(1, idle=NO_TIME)
    assert sorted(await post.lane()) == sorted(str(n) for n in range(150))
    assert sorted(await post.lane("CD")) == sorted(f"r{n}" for n in range(150))
    assert (await depth(post.night.transit)).waiting == 0
    assert await unrouted(post) == []


CRASH = """
import asyncio, sys
from datetime import timedelta
from pipelines.router import Router
from sinks.pool import open_pool
from streams.transit import Transit
from tests.pipelines.live import TO_KEY
from tests.pipelines.night import partner

async def main() -> None:
    pool = await open_pool(sys.argv[1], name="crash", connections=3)
    transit = Transit.open(sys.argv[2], sys.argv[3])
    await Router(pool, transit, {"AB": partner("AB")}, [TO_KEY]).step(1, block=timedelta(seconds=1))

asyncio.run(main())
"""


@pytest.mark.parametrize("durable", [True, False], ids=["postgres", "redis"])
@pytest.mark.parametrize(
    "failpoint", ["route-after-read", "route-after-commit", "route-after-feed", "route-after-ack"]
)
async def test_killed_at_each_step(
    post: Live, failpoint: str, database_url: str, redis_url: str, key_prefix: str, *, durable: bool
) -> None:
    """Whatever a dead router had goes to another one: nothing is lost, nothing is in a lane twice."""
    await (post.accept if durable else post.enqueue)(*[event(str(n)) for n in range(10)])
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", CRASH, database_url, redis_url, key_prefix),
        env={**os.environ, "MADEIRA_FAILPOINT": failpoint, "PYTHONPATH": os.pathsep.join(sys.path)},
        stdout=subprocess.DEVNULL,
    )
    assert await process.wait() == -signal.SIGKILL
    taken = await post.take()
    for entry in taken:
        await post.night.settle(settlement(entry, attempt(entry, State.SUCCEEDED)))
    await post.routed()
    while (await post.router.claim(1, idle=NO_TIME)).events:
        pass
    await post.night.feeder.sweep(1, LATER)
    taken += await post.take()
    assert sorted(entry.delivery for entry in taken) == [f"shop:{n}" for n in range(10)]
    assert not any(entry.possible_duplicate for entry in taken)
    assert len(await post.deliveries()) == 10
    assert (await depth(post.night.transit)).waiting == 0
    assert await unrouted(post) == []


async def test_what_was_left_in_hand_goes_first(post: Live) -> None:
    """A step that failed in the middle is done again by the next one, half a minute before others could."""
    await post.accept(event("1"))
    keys = post.night.keys()
    await post.night.transit.redis.rename(keys.pace, f"{keys.pace}-away")
    await post.night.transit.redis.set(keys.pace, "no hash")
    with pytest.raises(Exception, match="WRONGTYPE"):
        await post.router.step(1, block=MOMENT)
    await post.night.transit.redis.rename(f"{keys.pace}-away", keys.pace)
    assert (await post.router.step(1, block=MOMENT)).fed == {"AB"}
    assert await post.lane() == ["1"]


async def test_a_group_that_is_gone_is_made(post: Live) -> None:
    """Also where the whole shard is gone: what PostgreSQL has is found there, after a while."""
    await post.accept(event("1"))
    shard = post.night.transit.keys.inbound_of("shop", "1")
    await post.night.transit.redis.xgroup_destroy(shard.stream, "routers")
    assert await post.router.claim(1, idle=NO_TIME) == Step()
    assert await post.routed() == 0
    assert await post.routed() == 1
    await post.accept(event("2"))
    await post.night.transit.redis.delete(*[key.stream for key in post.night.transit.keys.inbound])
    assert await post.routed() == 0
    assert await post.router.sweep() == Step(), "a router may still come"
    assert await post.router.sweep(older_than=NO_TIME) == Step(1)
    assert await post.router.sweep(older_than=NO_TIME) == Step()
    assert await post.night.feeder.sweep(1, LATER) == 1
    assert await post.lane() == ["1", "2"]


async def test_a_router_leaves_no_name(post: Live) -> None:
    """However often workers are started, the shards' groups do not grow by it."""
    found = set()
    for number in range(3):
        await post.accept(event(str(number)))
        router = Router(post.night.pool, post.night.transit, post.night.partners, [TO_KEY])
        assert await router.step(1, block=MOMENT) == Step(1, fed=frozenset({"AB"}))
        redis, shards = post.night.transit.redis, post.night.transit.keys.inbound
        for shard in shards:
            found |= {consumer["name"] for consumer in await redis.xinfo_consumers(shard.stream, ROUTERS)}
    assert len(found) == 1


async def test_an_event_is_decided_by_one_router(post: Live) -> None:
    """Who finds it waiting has it: another, whose routes may be others, waits for the end and finds it routed."""
    waits = event("1")
    await post.record(waits)

    async def find() -> list[bool]:
        async with borrow(post.night.pool) as connection:
            await connection.execute("SET application_name = 'second'")
            return [known.waiting for known in (await deliveries.find(connection, [waits])).values()]

    async with borrow(post.night.pool) as connection:
        [first] = (await deliveries.find(connection, [waits])).values()
        assert first.waiting
        second = asyncio.create_task(find())
        blocked = (
            "SELECT pid FROM pg_stat_activity WHERE application_name = 'second' AND wait_event_type = 'Lock'"
        )
        while not (second.done() or await post.night.sql(blocked)):
            pass  # asking gives it its turn
        routed = Routed((Addressed("AB"),), ())
        await deliveries.write(
            connection, [deliveries.Decided(first.id, waits, routed)], direct=frozenset(), generation=None
        )
    assert await second == [False]


async def test_sweep_reads_what_it_routes(post: Live) -> None:
    """However many events wait, and nobody has analysed their table: a step reads those that it deals with."""
    await post.record(*(event(f"e{n}") for n in range(2000)), since=HOUR)
    async with borrow(post.night.pool) as connection:
        await connection.execute(statement("pool/by_key"))
        cursor = await connection.execute(
            "EXPLAIN (ANALYZE, COSTS OFF, TIMING OFF, SUMMARY OFF) " + statement("route/waiting"),
            {"older_than": NO_TIME, "limit": 10},
        )
        plan = "\n".join([line for (line,) in await cursor.fetchall()])
    assert {float(rows) for rows in re.findall(r"actual rows=([0-9.]+)", plan)} == {1.0, 10.0}, plan


async def test_while_recovery_collects_deliveries_wait_in_the_record(post: Live) -> None:
    """A closed pace, one of another generation or a partner that Redis does not know: sweep feeds them later."""
    await post.night.close(2)
    await post.accept(event("1"))
    assert await post.router.step(2, block=MOMENT) == Step(1)
    await post.accept(event("2"))
    assert await post.router.step(1, block=MOMENT) == Step(1), "it has not heard of the generation"
    assert await post.deliveries() == [("1", "AB", "pending", None), ("2", "AB", "pending", None)]
    await post.night.open(2)
    assert await post.night.feeder.sweep(2, LATER) == 2
    assert await post.lane() == ["1", "2"]


async def test_a_partner_that_comes_later(post: Live) -> None:
    """The shared mapping is looked at when routes are adopted."""
    post.night.partners["EF"] = Partner("EF", "https://ef.example/", 10)
    post.router.adopt([TO_KEY])
    await post.accept(event("1", "EF"))
    assert await post.router.step(1, block=MOMENT) == Step(1)
    assert await post.deliveries() == [("1", "EF", "pending", None)]


async def test_above_its_mark_a_partner_waits_in_the_record(post: Live) -> None:
    """At the high mark new events stay in PostgreSQL, also below it again while older ones wait there; another
    partner notices nothing."""
    router = Router(
        post.night.pool, post.night.transit, post.night.partners, [TO_KEY], live=Marks(high=4, low=2)
    )
    for first in range(0, 8, 4):
        await post.accept(*[event(str(n)) for n in range(first, first + 4)], event(f"c{first}", "CD"))
        await router.step(1, block=MOMENT)
    assert sorted(await post.lane()) == ["0", "1", "2", "3"]
    assert await post.lane("CD") == ["c0", "c4"]
    for entry in await post.take(2):
        await post.night.settle(settlement(entry, attempt(entry, State.SUCCEEDED)))
    # Older than sweep needs to feed them: newer ones wait behind them.
    await post.night.sql(
        "UPDATE delivery SET due_at = due_at - interval '1 minute' WHERE fed_generation IS NULL"
    )
    await post.accept(event("8"))
    assert await router.step(1, block=MOMENT) == Step(1)
    assert len([row for row in await post.deliveries() if row[3] is None]) == 5
    await post.night.feeder.sweep(1, datetime.now(UTC))
    await post.accept(event("9"))
    assert (await router.step(1, block=MOMENT)).fed == frozenset(), "seven wait, above the low mark"
    for entry in await post.take():
        await post.night.settle(settlement(entry, attempt(entry, State.SUCCEEDED)))
    await post.night.feeder.sweep(1, datetime.now(UTC))
    for entry in await post.take():
        await post.night.settle(settlement(entry, attempt(entry, State.SUCCEEDED)))
    await post.accept(event("a"))
    assert (await router.step(1, block=MOMENT)).fed == {"AB"}


async def test_a_full_redis(database_url: str, private_valkey: PrivateValkey) -> None:
    """What is new waits in the record as never handed over; what another router may have fed, as perhaps."""
    async with night(database_url, private_valkey.url, "full") as stores:
        post = live(stores)
        await inbound.make_groups(stores.transit)
        redis = stores.transit.redis
        await post.enqueue(event("1"))
        assert (await post.router.step(1, block=MOMENT)).fed == {"AB"}
        await redis.delete(stores.transit.keys.inbound_of("shop", "1").seen("shop", "1"))
        await post.enqueue(event("1"), event("2"))
        await redis.config_set("maxmemory", "1")
        assert await post.routed() == 2
        assert [row[3] for row in await post.deliveries()] == [-1, None]
        assert (await depth(stores.transit)).waiting == 0
        assert await stores.feeder.sweep(1, LATER) == 0
        await redis.config_set("maxmemory", "0")
        assert await stores.feeder.sweep(1, LATER) == 1
        assert [row[3] for row in await post.deliveries()] == [1, 1]
        assert await post.lane() == ["1", "2"]


ACTS = st.lists(
    st.sampled_from(
        ["accept", "enqueue", "record", "forget", "step", "claim", "sweep", "feed", "drop", "send"]
    ),
    min_size=5,
    max_size=25,
)


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(acts=ACTS)
async def test_in_whatever_order(post: Live, acts: list[str]) -> None:
    """Each accepted event is sent once, whoever of two routers and a sweep comes when, and whatever Redis forgets."""
    stores, names, sent = post.night, list[str](), list[str]()
    routers = [post.router, Router(stores.pool, stores.transit, stores.partners, [TO_KEY])]

    async def send() -> None:
        for entry in await post.take():
            sent.append(entry.delivery)
            await stores.settle(settlement(entry, attempt(entry, State.SUCCEEDED)))
        await stores.recorder.step()

    for place, act in enumerate(acts):
        router = routers[place % 2]
        match act:
            case "accept" | "enqueue" | "record":
                names.append(secrets.token_hex(4))
                await getattr(post, act)(event(names[-1]))
            case "forget" if names:  # the sender repeats the last one, and its mark has expired
                shard = stores.transit.keys.inbound_of("shop", names[-1])
                await stores.transit.redis.delete(shard.seen("shop", names[-1]))
                await post.enqueue(event(names[-1]))
            case "step":
                await router.step(1, block=MOMENT)
            case "claim":
                await router.claim(1, idle=NO_TIME)
            case "sweep":
                await router.sweep(older_than=NO_TIME)
            case "feed":
                await stores.feeder.sweep(1, LATER)
            case "drop":  # in a hand that never comes back
                await inbound.read(stores.transit, router="dead", limit=1, block=MOMENT)
            case _:
                await send()
    for router in routers:
        while (await router.claim(1, idle=NO_TIME)).events or (await router.step(1, block=MOMENT)).events:
            pass
    await post.router.sweep(older_than=NO_TIME)
    await stores.feeder.sweep(1, LATER)
    await send()
    assert sorted(sent) == sorted(f"shop:{name}" for name in names)
    assert (await depth(stores.transit)).waiting == 0
    assert await unrouted(post) == []


@pytest.mark.parametrize(("events", "size"), [(1, 60_000), (20, 3_000)], ids=["large", "many"])
async def test_sends_get_their_turn_while_bodies_are_reshaped(post: Live, events: int, size: int) -> None:
    """A large payload is reshaped beside the loop, small ones a few at a time: a send's slot is milliseconds long."""
    post.router.adopt([Route("shape", ("AB",), body="{n: n}")])
    body = b'{"n":1,"pad":[%b]}' % b",".join([b"1"] * (size // 2))
    turns: list[int] = []

    async def look() -> None:
        while True:
            turns.append(0)
            await asyncio.sleep(0)

    sends = asyncio.create_task(look())
    for number in range(events):
        routed = await post.router._route(event(str(number), body=body))
        assert [to.body for to in routed.deliveries] == [b'{"n":1}']
    sends.cancel()
    assert len(turns) >= max(1, events // 2)
