"""The way in, on real servers: one acceptance for each id, and never one that no store holds."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from hashlib import sha256

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from psycopg_pool import AsyncConnectionPool

from madeira.embedded_server import await_end, awaited_pid, free_port
from madeira.embedded_valkey import PrivateValkey
from pipelines.intake import Answer, Away, Intake, Unavailable, Unstorable
from pipelines.live_source import Durability, LiveSource
from pipelines.whereabouts import Sending, Stage, Try
from sinks.pool import borrow, open_pool
from streams import gauges
from streams.delivery import State
from streams.errors import StoreUnavailable
from streams.inbound import Accepted, Inbound, Verdict, decode, depth
from streams.transit import Transit
from tests.lossy import Lossy

AT = datetime(2026, 3, 2, 9, 30, tzinfo=UTC)
SHOP = LiveSource("shop")
QUICK = LiveSource("shop", durability=Durability.REDIS)
BOTH = pytest.mark.parametrize("source", [SHOP, QUICK], ids=["postgres", "redis"])


def event(event_id: str, body: bytes = b"{}", **more: object) -> Inbound:
    """An event whose request was its payload."""
    made = Inbound(
        event_id=event_id,
        event_type="payment.created",
        source="shop",
        tenant="default",
        payload=body,
        body_sha256=sha256(body).digest(),
        trace_id=sha256(event_id.encode() + body).hexdigest()[:32],
        created_at=AT,
    )
    return msgspec.structs.replace(made, **more)


def verdicts(answers: Sequence[Answer]) -> list[str]:
    """The answers in short: a verdict's name, or why there is none."""
    return [
        answer.verdict.name
        if isinstance(answer, Accepted)
        else answer.away
        if isinstance(answer, Unavailable)
        else "unstorable"
        for answer in answers
    ]


@dataclass(frozen=True, slots=True)
class Inlet:
    """Both stores and the intake between them and the world."""

    pool: AsyncConnectionPool
    transit: Transit
    intake: Intake

    async def sql(self, query: str) -> list[tuple[object, ...]]:
        """Rows of a query, committed."""
        async with borrow(self.pool) as connection:
            cursor = await connection.execute(query.encode())
            return await cursor.fetchall() if cursor.description else []

    async def entries(self) -> list[str]:
        """Ids of the events that wait for a router in Redis, shard by shard, each in its order."""
        found = []
        for shard in self.transit.keys.inbound:
            entries = await self.transit.redis.xrange(shard.stream)
            found += [decode(fields[b"e"]).event_id for _, fields in entries]
        return found

    async def recorded(self) -> list[str]:
        """Ids in PostgreSQL that wait for a router."""
        rows = await self.sql(
            "SELECT event_id FROM event JOIN unrouted ON unrouted.event = event.id WHERE reason IS NULL ORDER BY 1"
        )
        return [str(event_id) for (event_id,) in rows]


@asynccontextmanager
async def inlet(database_url: str, redis_url: str, key_prefix: str, **bounds: object) -> AsyncIterator[Inlet]:
    """An intake at these servers; the pool waits half a second for a server that is away."""
    pool = await open_pool(database_url, name="test", connections=4, wait=timedelta(seconds=0.5))
    transit = Transit.open(redis_url, key_prefix)
    try:
        yield Inlet(pool, transit, Intake(pool, transit, **bounds))  # type: ignore[arg-type]
    finally:
        await pool.close()
        await transit.close()


@pytest.fixture
async def stores(database_url: str, redis_url: str, key_prefix: str) -> AsyncIterator[Inlet]:
    """Both stores there."""
    async with inlet(database_url, redis_url, key_prefix) as found:
        yield found


@BOTH
async def test_an_id_is_accepted_once(stores: Inlet, source: LiveSource) -> None:
    """The same again is a duplicate with the first one's trace id, another body a conflict; each waits once."""
    first = await stores.intake.accept([event("1"), event("2")], source)
    again = await stores.intake.accept([event("1"), event("2", b"[]"), event("3")], source)
    assert verdicts(first) == ["ACCEPTED", "ACCEPTED"]
    assert verdicts(again) == ["DUPLICATE", "CONFLICT", "ACCEPTED"]
    assert again[0] == Accepted(Verdict.DUPLICATE, event("1").trace_id)
    assert again[1] == Accepted(Verdict.CONFLICT, event("2").trace_id)
    assert sorted(await stores.entries()) == ["1", "2", "3"]
    assert await stores.recorded() == (["1", "2", "3"] if source is SHOP else [])


@BOTH
async def test_twice_within_one_flush(stores: Inlet, source: LiveSource) -> None:
    """Of one id in one call the first is accepted, the same again a duplicate, another body a conflict."""
    answers = await stores.intake.accept([event("1"), event("1"), event("1", b"[]"), event("2")], source)
    assert verdicts(answers) == ["ACCEPTED", "DUPLICATE", "CONFLICT", "ACCEPTED"]
    again = await stores.intake.accept([event("1"), event("1"), event("1", b"[]")], source)
    assert verdicts(again) == ["DUPLICATE", "DUPLICATE", "CONFLICT"]
    assert sorted(await stores.entries()) == ["1", "2"]


@BOTH
async def test_two_hundred_at_once_are_one(
    stores: Inlet, source: LiveSource, database_url: str, redis_url: str, key_prefix: str
) -> None:
    """Over two processes' intakes, too: one accepted, 199 duplicates, one row, one entry."""
    async with inlet(database_url, redis_url, key_prefix) as other:
        answers = await asyncio.gather(
            *((stores, other)[n % 2].intake.accept([event("1")], source) for n in range(200))
        )
    assert Counter(verdicts([answer for [answer] in answers])) == {"ACCEPTED": 1, "DUPLICATE": 199}
    assert await stores.entries() == ["1"]
    assert await stores.recorded() == (["1"] if source is SHOP else [])


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
async def test_any_mixture_of_calls_accepts_each_id_once(stores: Inlet, data: st.DataObject) -> None:
    """Whatever comes at once, in whatever calls: one acceptance an id, the rest by its body; both stores agree."""
    await stores.sql("TRUNCATE event, unrouted")
    for shard in stores.transit.keys.inbound:
        async for key in stores.transit.redis.scan_iter(match=f"{stores.transit.keys.prefix}:*"):
            await stores.transit.redis.delete(key)
        assert not await stores.transit.redis.exists(shard.stream)
    source = data.draw(st.sampled_from([SHOP, QUICK]))
    one = st.tuples(st.sampled_from("abcdef"), st.sampled_from([b"{}", b"[]", b"0"]))
    calls = data.draw(st.lists(st.lists(one, max_size=6), max_size=8))
    made = [[event(*pair) for pair in call] for call in calls]
    answers = await asyncio.gather(*(stores.intake.accept(call, source) for call in made))
    winners: dict[str, tuple[bytes, str]] = {}
    for call, given_answers in zip(made, answers, strict=True):
        for one_event, answer in zip(call, given_answers, strict=True):
            if answer == Accepted(Verdict.ACCEPTED, one_event.trace_id):
                assert one_event.event_id not in winners
                winners[one_event.event_id] = (one_event.body_sha256, one_event.trace_id)
    for call, given_answers in zip(made, answers, strict=True):
        for one_event, answer in zip(call, given_answers, strict=True):
            assert isinstance(answer, Accepted)
            sha, trace_id = winners[one_event.event_id]
            assert answer.trace_id == trace_id
            assert (answer.verdict is Verdict.CONFLICT) == (one_event.body_sha256 != sha)
    assert sorted(await stores.entries()) == sorted(winners)
    assert await stores.recorded() == (sorted(winners) if source is SHOP else [])


async def test_all_of_an_event_is_kept(stores: Inlet) -> None:
    """Every field arrives in PostgreSQL as it came; the payload byte for byte, the amount in minor units."""
    full = event(
        "1",
        b'{"a": 1.0,  "b":"\xc3\xa9"}\x00\xff',
        content_type="application/octet-stream",
        routing_key="AB",
        target_uri="https://ab.example/x",
        tags={"region": "sh", "note": 'a "quoted" \\ one'},
        business_date=date(2026, 3, 2),
        amount=Decimal("-2452.00"),
        currency="CZK",
        order_key="o-1",
    )
    await stores.intake.accept([full, event("2")], SHOP)
    first, second = await stores.sql(
        """SELECT source, event_type, routing_key, target_uri, tenant, tags, content_type, body, body_sha256,
                  trace_id, created_at, business_date, amount_minor, currency, order_key, version, batch_id
           FROM event ORDER BY event_id"""
    )
    assert first == (
        *("shop", "payment.created", "AB", "https://ab.example/x", "default", full.tags),
        *("application/octet-stream", full.payload, full.body_sha256, full.trace_id, AT),
        *(date(2026, 3, 2), -245200, "CZK", "o-1", 1, None),
    )
    assert second[5] is second[11] is second[12] is second[13] is None


@BOTH
async def test_a_call_keeps_its_order(stores: Inlet, source: LiveSource) -> None:
    """Events of one call reach their shards in the order in which they stood, over several flushes."""
    events = [event(str(n * 7919 % 2500)) for n in range(2500)]
    answers = await stores.intake.accept(events, source)
    assert Counter(verdicts(answers)) == {"ACCEPTED": 2500}
    place = {one.event_id: i for i, one in enumerate(events)}
    for shard in stores.transit.keys.inbound:
        entries = await stores.transit.redis.xrange(shard.stream)
        places = [place[decode(fields[b"e"]).event_id] for _, fields in entries]
        assert places == sorted(places)
    assert (await depth(stores.transit)).waiting == 2500


@pytest.mark.parametrize("turns", [0, 1, 2, 5])
async def test_who_hangs_up_takes_nobody_along(stores: Inlet, turns: int) -> None:
    """A call cancelled before its flush, or during it, leaves the others as they are."""
    calls = [asyncio.create_task(stores.intake.accept([event(str(n))], SHOP)) for n in range(20)]
    for _ in range(turns):
        await asyncio.sleep(0)
    calls[3].cancel()
    answers = await asyncio.gather(*calls, return_exceptions=True)
    assert isinstance(answers.pop(3), asyncio.CancelledError)
    assert all(
        verdicts(answer) == ["ACCEPTED"] for answer in answers if not isinstance(answer, BaseException)
    )
    assert {str(n) for n in range(20)} - {"3"} <= set(await stores.recorded())


async def test_a_row_that_postgresql_refuses_sinks_no_other(stores: Inlet) -> None:
    """What cannot be stored (a NUL, in text or in a tag; more decimals than its currency has) is told by itself."""
    events = [event(str(n)) for n in range(9)]
    events[2] = event("2", event_type="a\x00b")
    events[5] = event("5", tags={"a": "\x00"})
    events[7] = event("7", amount=Decimal("0.001"), currency="CZK")
    answers = await stores.intake.accept(events, SHOP)
    assert [i for i, answer in enumerate(answers) if isinstance(answer, Unstorable)] == [2, 5, 7]
    assert Counter(verdicts(answers)) == {"ACCEPTED": 6, "unstorable": 3}
    assert await stores.recorded() == sorted(await stores.entries()) == ["0", "1", "3", "4", "6", "8"]


async def test_postgresql_away(redis_url: str, key_prefix: str) -> None:
    """Nothing is accepted where it is the record, and Redis hears of nothing; the others go on."""
    url = f"postgresql://nobody@127.0.0.1:{free_port()}/none"
    async with inlet(url, redis_url, key_prefix) as stores:
        answers = await asyncio.gather(*(stores.intake.accept([event(str(n))], SHOP) for n in range(50)))
        assert {answer for [answer] in answers} == {Unavailable(Away.POSTGRES)}
        assert await stores.entries() == []
        assert verdicts(await stores.intake.accept([event("1")], QUICK)) == ["ACCEPTED"]
        assert await stores.intake.look() == stores.intake.health() == (Away.POSTGRES,)
        with pytest.raises(StoreUnavailable):
            await stores.intake.find("shop", "1")


async def test_a_postgresql_that_hangs(database_url: str, redis_url: str, key_prefix: str) -> None:
    """Past the deadline nobody waits on, neither those of the flush nor those behind it, until a look reaches it."""
    async with inlet(database_url, redis_url, key_prefix, deadline=timedelta(seconds=0.2)) as stores:
        async with borrow(stores.pool) as holder:
            await holder.execute("LOCK TABLE event")
            calls = [asyncio.create_task(stores.intake.accept([event("1")], SHOP))]
            await asyncio.sleep(0)
            calls += [asyncio.create_task(stores.intake.accept([event(str(n))], SHOP)) for n in range(2, 9)]
            answers = await asyncio.gather(*calls)
            assert {answer for [answer] in answers} == {Unavailable(Away.POSTGRES)}
            assert verdicts(await stores.intake.accept([event("9")], SHOP)) == ["postgres_away"]
        assert await stores.recorded() == await stores.entries() == []
        assert verdicts(await stores.intake.accept([event("1")], SHOP)) == ["postgres_away"]
        assert await stores.intake.look() == ()
        assert verdicts(await stores.intake.accept([event("1")], SHOP)) == ["ACCEPTED"]


async def test_a_commit_whose_answer_is_lost(database_url: str, redis_url: str, key_prefix: str) -> None:
    """No acceptance is claimed; the event is there all the same, and a second try finds a duplicate."""
    async with Lossy(database_url) as way, inlet(way.url, redis_url, key_prefix) as stores:
        assert verdicts(await stores.intake.accept([event("1")], SHOP)) == ["ACCEPTED"]
        way.lose_answer_to(b"INSERT INTO unrouted")
        assert verdicts(await stores.intake.accept([event("2")], SHOP)) == ["postgres_away"]
        assert verdicts(await stores.intake.accept([event("2"), event("3")], SHOP)) == [
            "DUPLICATE",
            "ACCEPTED",
        ]
        assert await stores.recorded() == ["1", "2", "3"]
        assert sorted(await stores.entries()) == ["1", "3"]


async def test_a_session_that_is_ended_in_mid_commit(stores: Inlet) -> None:
    """What the server did not commit was not accepted."""
    await stores.sql(
        """CREATE FUNCTION cut() RETURNS trigger LANGUAGE plpgsql AS
           $$ BEGIN PERFORM pg_terminate_backend(pg_backend_pid()); RETURN NULL; END $$"""
    )
    await stores.sql(
        """CREATE CONSTRAINT TRIGGER cut AFTER INSERT ON event INITIALLY DEFERRED
           FOR EACH ROW WHEN (new.event_id = '2') EXECUTE FUNCTION cut()"""
    )
    answers = await stores.intake.accept([event("1"), event("2")], SHOP)
    assert verdicts(answers) == ["postgres_away"] * 2
    assert await stores.recorded() == await stores.entries() == []
    assert verdicts(await stores.intake.accept([event("1")], SHOP)) == ["ACCEPTED"]


async def test_redis_away(database_url: str, private_valkey: PrivateValkey, key_prefix: str) -> None:
    """PostgreSQL's events are accepted and left to a sweep, Redis's are not; when it is back, it gets them again."""
    async with inlet(database_url, private_valkey.url, key_prefix) as stores:
        assert verdicts(await stores.intake.accept([event("1")], SHOP)) == ["ACCEPTED"]
        os.kill(awaited_pid(private_valkey), signal.SIGKILL)
        await_end(private_valkey.home)
        before = stores.intake.now()
        assert verdicts(await stores.intake.accept([event("1"), event("2")], SHOP)) == [
            "DUPLICATE",
            "ACCEPTED",
        ]
        assert verdicts(await stores.intake.accept([event("3")], QUICK)) == ["redis_away"]
        assert await stores.intake.look() == (Away.REDIS,)
        assert stores.intake.now() > before
        private_valkey.start()
        awaited_pid(private_valkey)
        assert await stores.intake.look() == ()
        assert verdicts(await stores.intake.accept([event("4")], SHOP)) == ["ACCEPTED"]
        assert await stores.recorded() == ["1", "2", "4"]
        assert sorted(set(await stores.entries()) - {"1"}) == ["4"], "1 may be lost with Redis's last second"


async def test_what_is_away_is_in_the_log_once(
    database_url: str, private_valkey: PrivateValkey, key_prefix: str, caplog: pytest.LogCaptureFixture
) -> None:
    """However often somebody looks: when a store goes away, and when it is back."""
    caplog.set_level("INFO", "pipelines.intake")
    async with inlet(database_url, private_valkey.url, key_prefix) as stores:
        await stores.intake.look()
        assert caplog.messages == [], "a good start is no news"
        os.kill(awaited_pid(private_valkey), signal.SIGKILL)
        await_end(private_valkey.home)
        await stores.intake.look()
        await stores.intake.look()
        private_valkey.start()
        awaited_pid(private_valkey)
        await stores.intake.look()
    assert caplog.messages == ["store_away", "store_back"]
    assert [record.__dict__["fields"]["away"] for record in caplog.records] == [[Away.REDIS], (Away.REDIS,)]


async def test_redis_full(database_url: str, private_valkey: PrivateValkey, key_prefix: str) -> None:
    """Nothing is accepted, and nothing is in PostgreSQL; with room it goes on."""
    async with inlet(database_url, private_valkey.url, key_prefix) as stores:
        assert await stores.intake.look() == ()
        await stores.transit.redis.config_set("maxmemory", 1)
        for source in (SHOP, QUICK):
            assert verdicts(await stores.intake.accept([event("1")], source)) == ["redis_full"]
        assert await stores.intake.look() == (Away.FULL,)
        assert await stores.sql("SELECT count(*) FROM event") == [(0,)]
        await stores.transit.redis.config_set("maxmemory", 0)
        assert verdicts(await stores.intake.accept([event("1")], SHOP)) == ["ACCEPTED"]
        assert await stores.entries() == ["1"]


async def test_redis_emptied(database_url: str, private_valkey: PrivateValkey, key_prefix: str) -> None:
    """PostgreSQL still knows the id; the event is found by its row in `unrouted`."""
    async with inlet(database_url, private_valkey.url, key_prefix) as stores:
        await stores.intake.accept([event("1")], SHOP)
        await stores.transit.redis.flushall()
        assert verdicts(await stores.intake.accept([event("1"), event("2")], SHOP)) == [
            "DUPLICATE",
            "ACCEPTED",
        ]
        assert await stores.recorded() == ["1", "2"]
        assert await stores.entries() == ["2"]


async def test_redis_answer_lost(database_url: str, redis_url: str, key_prefix: str) -> None:
    """Where Redis is the record no acceptance is claimed, and a second try finds a duplicate."""
    async with Lossy(redis_url) as way, inlet(database_url, way.url, key_prefix) as stores:
        assert verdicts(await stores.intake.accept([event("1")], QUICK)) == ["ACCEPTED"]
        way.lose_answer_to(b":seen:shop:2")
        assert verdicts(await stores.intake.accept([event("2")], QUICK)) == ["redis_away"]
        assert verdicts(await stores.intake.accept([event("2")], QUICK)) == ["DUPLICATE"]
        assert sorted(await stores.entries()) == ["1", "2"]


async def test_who_waits_behind_a_store_that_is_away(
    database_url: str, redis_url: str, key_prefix: str
) -> None:
    """Is told so together with those before him: he would only wait longer than they for the same."""
    async with Lossy(redis_url) as way, inlet(database_url, way.url, key_prefix) as stores:
        await stores.intake.look()
        way.lose_answer_to(b":seen:shop:1")
        first = asyncio.create_task(stores.intake.accept([event("1")], QUICK))
        for _ in range(3):
            await asyncio.sleep(0)
        behind = asyncio.create_task(stores.intake.accept([event("2")], QUICK))
        assert await asyncio.gather(first, behind) == [[Unavailable(Away.REDIS)]] * 2
        assert await stores.entries() == ["1"]


CRASH = """
import asyncio, sys
from datetime import UTC, datetime
from pipelines.intake import Intake
from pipelines.live_source import LiveSource
from sinks.pool import open_pool
from streams.inbound import Inbound
from streams.transit import Transit

async def main():
    database_url, redis_url, prefix = sys.argv[1:]
    pool = await open_pool(database_url, name="crash", connections=4)
    event = Inbound(event_id="1", event_type="t", source="shop", tenant="default", payload=b"{}",
                    body_sha256=b"0" * 32, trace_id="0" * 32, created_at=datetime.now(UTC))
    await Intake(pool, Transit.open(redis_url, prefix)).accept([event], LiveSource("shop"))

asyncio.run(main())
"""


async def test_killed_between_commit_and_redis(
    stores: Inlet, database_url: str, redis_url: str, key_prefix: str
) -> None:
    """The event is in PostgreSQL with its row in `unrouted`, so that a sweep routes it; it is known from then on."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", CRASH, database_url, redis_url, key_prefix),
        env={
            **os.environ,
            "MADEIRA_FAILPOINT": "intake-after-commit",
            "PYTHONPATH": os.pathsep.join(sys.path),
        },
        stdout=subprocess.DEVNULL,
    )
    assert await process.wait() == -signal.SIGKILL
    assert await stores.recorded() == ["1"]
    assert await stores.entries() == []
    assert verdicts(await stores.intake.accept([event("1", b"[]")], SHOP)) == ["CONFLICT"]


async def test_too_many_wait(database_url: str, redis_url: str, key_prefix: str) -> None:
    """Beyond the bound a call is refused at once; what waits is accepted, and so is a large call by itself."""
    async with inlet(database_url, redis_url, key_prefix, most_waiting=10) as stores:
        large = [event(f"large-{n}") for n in range(25)]
        assert Counter(verdicts(await stores.intake.accept(large, SHOP))) == {"ACCEPTED": 25}
        answers = await asyncio.gather(*(stores.intake.accept([event(str(n))], SHOP) for n in range(30)))
        assert Counter(verdicts([answer for [answer] in answers])) == {"ACCEPTED": 10, "busy": 20}
        assert verdicts(await stores.intake.accept([event("later")], SHOP)) == ["ACCEPTED"]


@BOTH
async def test_closing_finishes_what_is_under_way(stores: Inlet, source: LiveSource) -> None:
    """Who came before is accepted, who comes after is refused."""
    before = [asyncio.create_task(stores.intake.accept([event(str(n))], source)) for n in range(5)]
    await asyncio.sleep(0)
    await stores.intake.close()
    assert verdicts(await stores.intake.accept([event("late")], source)) == ["closing"]
    assert [verdicts(answer) for answer in await asyncio.gather(*before)] == [["ACCEPTED"]] * 5
    assert sorted(await stores.entries()) == ["0", "1", "2", "3", "4"]


async def test_the_time_is_redis_s(stores: Inlet) -> None:
    """After a look, and after any acceptance, `now` is what Redis's clock shows."""
    await stores.intake.look()
    before = await gauges.now_us(stores.transit.redis)
    now = (stores.intake.now() - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)
    after = await gauges.now_us(stores.transit.redis)
    # The bounds of the map are a round trip wide, which is what two askings took at least.
    slack = max(50_000, after - before)
    assert before - slack <= now <= after + slack


async def test_health_is_bad_until_somebody_looked(stores: Inlet) -> None:
    """A process that has not reached its stores yet is not ready."""
    assert stores.intake.health() == (Away.REDIS, Away.POSTGRES)
    await stores.intake.look()
    assert stores.intake.health() == ()


async def test_a_read_only_server_is_away(stores: Inlet, database_url: str, redis_url: str) -> None:
    """A standby answers and takes nothing: it is not ready, and an event is not accepted."""
    url = (
        f"{database_url}{'&' if '?' in database_url else '?'}options=-c%20default_transaction_read_only%3Don"
    )
    pool = AsyncConnectionPool(url, open=False)
    await pool.open()
    try:
        intake = Intake(pool, stores.transit)
        assert await intake.look() == (Away.POSTGRES,)
        assert verdicts(await intake.accept([event("1")], SHOP)) == ["postgres_away"]
    finally:
        await pool.close()


@BOTH
async def test_finding_an_event_that_waits(stores: Inlet, source: LiveSource) -> None:
    """It waits, with its trace id; another source's id is none, nor is one that nobody sent."""
    await stores.intake.accept([event("1")], source)
    found = await stores.intake.find("shop", "1")
    assert found is not None
    assert (found.stage, found.trace_id, found.deliveries) == (Stage.WAITING, event("1").trace_id, ())
    assert found.accepted_at == (AT if source is SHOP else None)
    assert await stores.intake.find("other", "1") is None
    assert await stores.intake.find("shop", "2") is None


async def test_finding_an_event_that_was_routed(stores: Inlet) -> None:
    """Each delivery with its attempts in order; the next attempt's time only while one is to come."""
    await stores.intake.accept([event("1"), event("2")], SHOP)
    await stores.sql(
        """INSERT INTO delivery (event, partner, status, due_at, updated_at, possible_duplicate)
           SELECT id, partner, status::delivery_status, created_at + interval '1 minute', created_at, flag
           FROM event, (VALUES ('AB', 'retrying', true), ('CD', 'pending', false)) AS p (partner, status, flag)
           WHERE event_id = '1'"""
    )
    await stores.sql(
        """INSERT INTO delivery_log (attempt_id, created_at, source, event_id, partner, number, worker, trace_id,
               started_at, sent_at, elapsed_ms, status_code, outcome, reason, may_have_arrived, possible_duplicate)
           SELECT 'a' || n, created_at, source, event_id, 'AB', n, 'w', trace_id, created_at,
                  CASE n WHEN 1 THEN created_at END, 5, CASE n WHEN 1 THEN 503 END, 'retry', 'busy', n = 1, false
           FROM event, generate_series(2, 1, -1) AS n WHERE event_id = '1'"""
    )
    await stores.sql("UPDATE unrouted SET reason = 'no route' FROM event WHERE event = id AND event_id = '2'")
    await stores.sql("DELETE FROM unrouted WHERE reason IS NULL")
    found = await stores.intake.find("shop", "1")
    assert found is not None
    assert (found.stage, found.event_type, found.accepted_at) == (Stage.ROUTED, "payment.created", AT)
    tries = (Try(1, AT, 503, "retry", "busy", True), Try(2, None, None, "retry", "busy", False))
    assert found.deliveries == (
        Sending("AB", State.RETRYING, True, AT + timedelta(minutes=1), tries),
        Sending("CD", State.PENDING, False, None, ()),
    )
    lost = await stores.intake.find("shop", "2")
    assert lost is not None
    assert (lost.stage, lost.reason) == (Stage.UNROUTABLE, "no route")


async def test_one_source_may_change_where_it_is_kept(stores: Inlet) -> None:
    """An event that only Redis has is accepted by PostgreSQL once; in transit it stays one."""
    await stores.intake.accept([event("1")], QUICK)
    changed = replace(QUICK, durability=Durability.POSTGRES)
    assert verdicts(await stores.intake.accept([event("1")], changed)) == ["ACCEPTED"]
    assert await stores.entries() == ["1"]
    assert await stores.recorded() == ["1"]
