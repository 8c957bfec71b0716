"""A worker's identity and its part in recovery, step by step on real servers."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from madeira.bank_ledger import Bank
from madeira.banks import Banks
from madeira.settings import Settings, load
from madeira.worker import Stores, Worker, new_worker_id, open_stores
from pipelines.route import BY_ROUTING_KEY, Route
from sinks.partner import Partner
from sinks.pool import borrow
from sinks.webhook import Webhook
from streams import gauges, inbound, leases
from streams.errors import StoreUnavailable
from tests.partner import banks, partner
from tests.pipelines.shift import FORGIVING


@dataclass(frozen=True, slots=True)
class Place:
    """A worker with its stores and its bank."""

    worker: Worker
    stores: Stores
    banks: Banks
    partner: Partner
    """AB, as it was at the start."""

    async def sql(self, query: str) -> list[tuple[object, ...]]:
        """What the record says, or a change of it."""
        async with borrow(self.stores.pool) as connection:
            cursor = await connection.execute(query.encode())
            return await cursor.fetchall() if cursor.description else []

    async def order(self, rows: int, *, to: str = "AB") -> None:
        """Released deliveries, made just now."""
        await self.sql(
            f"""WITH b AS (INSERT INTO batch (job, business_date, state)
                           VALUES ('j-{to}', '2026-03-02', 'released') RETURNING id),
                     e AS (INSERT INTO event (source, event_id, event_type, body, body_sha256, trace_id, created_at,
                                              batch_id)
                           SELECT 'j', '{to}' || n, 'payment', '{{}}', '', repeat('a', 32), now(), b.id
                           FROM b, generate_series(1, {rows}) AS n RETURNING id, event_id, batch_id),
                     d AS (INSERT INTO delivery (event, partner, row_number, batch_id, updated_at)
                           SELECT id, '{to}', ltrim(event_id, '{to}')::integer, batch_id, now() FROM e)
                INSERT INTO batch_partner (batch_id, partner, rows) SELECT id, '{to}', {rows} FROM b"""
        )

    async def due(self, name: str) -> None:
        """The second is over that follows a recovery without a slot."""
        keys = self.stores.transit.keys.partner(name, self.partner.tenant)
        await self.stores.transit.redis.hset(keys.pace, "tat", 0)

    async def ended(self) -> None:
        """Every send that is under way has ended and is handed in."""
        for name, box in self.worker.dispatcher.outboxes.items():
            await asyncio.gather(*box.sending.values())
            await self.worker.dispatcher.settle(name)

    async def until(self, ask: Callable[[], object]) -> None:
        """Look again and again until it is so."""
        async with asyncio.timeout(60):
            while not ask():  # noqa: ASYNC110 - a turn of the loop
                await asyncio.sleep(0.01)

    async def until_open(self) -> None:
        """Recover for the first time, and let this worker know."""
        await self.worker.recover()
        await self.worker.follow()


@asynccontextmanager
async def place(
    database_url: str,
    redis_url: str,
    key_prefix: str,
    folder: Path,
    bank: Bank | None = None,
    *,
    drains: Callable[[Partner], bool] = lambda _: True,
    configuration: Callable[[], Awaitable[Settings | None]] | None = None,
) -> AsyncIterator[Place]:
    """A worker that has not begun."""
    async with (
        banks(folder, AB=bank or Bank()) as received,
        Webhook.open(connections=16) as webhook,
        open_stores(database_url, redis_url, key_prefix=key_prefix) as stores,
    ):
        to = replace(partner(received.endpoint("AB")), qps=1000, lateness=FORGIVING)
        worker = Worker(stores, webhook, {"AB": to}, drains=drains, configuration=configuration)
        yield Place(worker, stores, received, to)


@pytest.fixture
async def at(database_url: str, redis_url: str, key_prefix: str, tmp_path: Path) -> AsyncIterator[Place]:
    """A worker that has not begun, and a bank that behaves well."""
    async with place(database_url, redis_url, key_prefix, tmp_path) as found:
        yield found


async def test_beginning_is_registered_and_leased(at: Place) -> None:
    """First in the record, so that recovery knows whom to wait for, then in Redis."""
    await at.worker.begin()
    worker = at.worker.dispatcher.worker
    assert await at.sql("SELECT id, generation, ended_at FROM worker") == [(worker, 0, None)]
    assert await leases.alive(at.stores.transit, [worker]) == {worker}


async def test_a_beginning_without_redis_leaves_nobody_to_wait_for(
    database_url: str, redis_url: str, key_prefix: str, tmp_path: Path
) -> None:
    """Or a recovery would wait for each try to fall silent, and suspect what nobody ever had in hand."""
    async with place(database_url, "redis://127.0.0.1:1/0", key_prefix, tmp_path) as at:
        for _ in range(3):
            with pytest.raises(StoreUnavailable):
                await at.worker.begin()
        assert await at.sql("SELECT count(*), count(ended_at) FROM worker") == [(3, 3)]


async def test_a_lost_lease_begins_another_life(at: Place) -> None:
    """Another id, another row; the old one's is kept alive, and closed once nothing of it is in flight."""
    await at.worker.begin()
    before = at.worker.dispatcher.worker
    await leases.end(at.stores.transit, before)
    await at.worker.beat()
    now = at.worker.dispatcher.worker
    assert now != before
    assert await leases.alive(at.stores.transit, [before, now]) == {now}
    assert len(await at.sql("SELECT id FROM worker WHERE ended_at IS NULL")) == 2
    await at.worker.report()
    assert await at.sql("SELECT id FROM worker WHERE ended_at IS NULL") == [(now,)]


async def test_a_record_that_was_closed_begins_another_life(at: Place) -> None:
    """Whoever was taken for silent has a new id and an open record at its next heartbeat: it is waited for."""
    await at.worker.begin()
    before = at.worker.dispatcher.worker
    await at.worker.report()
    assert at.worker.dispatcher.worker == before
    await at.sql("UPDATE worker SET ended_at = now()")
    await at.worker.report()
    now = at.worker.dispatcher.worker
    assert now != before
    assert await at.sql("SELECT id FROM worker WHERE ended_at IS NULL") == [(now,)]


async def test_another_life_does_not_say_that_it_has_handed_in(at: Place) -> None:
    """What is under way from before the lease was lost is still to be handed in, so recovery waits for the new id."""
    await at.until_open()
    await at.worker.begin()
    await at.worker.follow()
    await at.order(1)
    await at.worker.feed()
    dispatcher = at.worker.dispatcher
    while dispatcher.in_flight == 0:
        await dispatcher.take("AB")
    await at.sql("UPDATE generation SET number = 5, state = 'recovering'")
    before = dispatcher.worker
    await at.sql("UPDATE worker SET heartbeat_at = now() - interval '1 hour'")
    await at.worker.begin()
    await at.worker.report()
    silent = "SELECT id FROM worker WHERE heartbeat_at < now() - interval '1 minute'"
    assert await at.sql(silent) == [], "a recovery would take all that was fed for perhaps sent"
    mine = f"SELECT generation FROM worker WHERE id = '{dispatcher.worker}'"
    assert await at.sql(mine) == [(1,)]
    await asyncio.gather(*dispatcher.outboxes["AB"].sending.values())
    await at.stores.transit.scripts.fence(dispatcher.outboxes["AB"].keys, generation=5, guard_us=0)
    await dispatcher.settle("AB")
    await at.worker.follow()
    assert await at.sql(mine) == [(5,)]
    assert await at.sql(f"SELECT generation FROM worker WHERE id = '{before}'") == [(5,)]


async def test_another_life_in_the_middle_of_a_recovery_moves_nothing(at: Place) -> None:
    """Whoever learns of a recovery by beginning again waits for its end, and then everything is fed anew."""
    await at.until_open()
    await at.worker.begin()
    await at.order(3)
    await at.worker.feed()
    await at.sql("UPDATE generation SET number = number + 1, state = 'recovering'")
    await at.worker.begin()
    assert await at.worker.feed() > 0
    assert await at.sql("SELECT fed_complete FROM batch_partner") == [(1,)]


async def test_nothing_is_moved_while_recovery_is_due(at: Place) -> None:
    """A worker that does not know yet that all is open feeds, sweeps, releases and takes over nothing."""
    await at.worker.begin()
    await at.order(3)
    for step in (
        at.worker.feed,
        at.worker.sweep,
        at.worker.release,
        at.worker.take_over,
        at.worker.follow_controls,
    ):
        assert await step() > 0
    keys = [
        key async for key in at.stores.transit.redis.scan_iter(match=f"{at.stores.transit.keys.prefix}:{{*")
    ]
    assert keys == []


async def test_a_lowered_rate_holds_from_the_first_send(at: Place) -> None:
    """A worker takes nothing by what Redis has from before its start; jobs.toml's rate comes first."""
    await at.worker.recover()
    dispatcher, transit = at.worker.dispatcher, at.stores.transit
    keys = dispatcher.outboxes["AB"].keys
    await transit.scripts.configure(
        keys, generation=1, interval_us=7, guard_us=0, max_in_flight=100, floor_percent=20
    )
    await transit.redis.hset(keys.pace, "tat", 0)
    await at.order(3)
    await at.worker.feeder.step(1)
    await at.worker.begin()
    assert await at.worker.take("AB") > 0
    assert dispatcher.in_flight == 0
    await at.worker.follow()
    assert (
        int(await transit.redis.hget(keys.pace, "interval_us"))
        == dispatcher.outboxes["AB"].partner.interval_us
    )
    await at.worker.take("AB")
    assert dispatcher.in_flight > 0
    await asyncio.gather(*dispatcher.outboxes["AB"].sending.values())


async def test_a_worker_says_that_it_has_handed_in(at: Place) -> None:
    """Once it follows another generation with nothing in hand, its row says so."""
    await at.until_open()
    await at.worker.begin()
    await at.sql("UPDATE generation SET number = 5, state = 'recovering'")
    await at.worker.follow()
    assert await at.sql("SELECT generation FROM worker") == [(5,)]


async def test_a_whole_life(database_url: str, redis_url: str, key_prefix: str, tmp_path: Path) -> None:
    """Asked to leave with sends under way: they end, are recorded, and the worker's record is closed.

    The bank is slow, so that there is something in flight; what was not begun is left for others.
    """
    async with place(database_url, redis_url, key_prefix, tmp_path, Bank(slow_ms=300)) as at:
        await at.order(400)
        stop = asyncio.Event()
        life = asyncio.create_task(at.worker.run(stop))
        async with asyncio.timeout(30):
            while at.worker.dispatcher.in_flight == 0:  # noqa: ASYNC110 - a turn of the loop
                await asyncio.sleep(0.01)
            stop.set()
            await life
        accepted = {entry.id for entry in at.banks.entries() if entry.accepted}
        assert accepted
        delivered = await at.sql(
            "SELECT source || ':' || event_id FROM delivery JOIN event ON event.id = event WHERE status = 'succeeded'"
        )
        assert {row[0] for row in delivered} == accepted
        assert await at.sql("SELECT count(*) FROM delivery WHERE status = 'pending'") == [
            (400 - len(accepted),)
        ]
        assert await at.sql("SELECT ended_at IS NULL, in_flight FROM worker") == [(False, 0)]
        assert await leases.alive(at.stores.transit, [at.worker.dispatcher.worker]) == frozenset()


def test_ids_are_new() -> None:
    """Nobody had it before."""
    assert len({new_worker_id() for _ in range(1000)}) == 1000


async def _started(at: Place) -> None:
    """In generation 1, with its lease, and the rates known to Redis."""
    await at.until_open()
    await at.worker.begin()
    await at.worker.follow()
    await at.due("AB")


def _settings(**partners: Partner) -> Settings:
    """jobs.toml with these partners, as it reads after a change."""
    return replace(load({"MADEIRA_CONFIG": os.devnull}), partners=partners)


async def test_a_new_partner_is_introduced_and_sent_to(at: Place) -> None:
    """Its outbox is there at once, its first send follows its introduction; the other one's slots go on meanwhile."""
    await _started(at)
    ab = at.worker.dispatcher.outboxes["AB"].partner
    cd = replace(ab, name="CD", endpoint=at.banks.endpoint("CD"))
    at.worker.adopt(_settings(AB=ab, CD=cd))
    assert at.worker.dispatcher.outboxes.keys() == {"AB", "CD"}
    assert at.worker.dispatcher.outboxes["AB"].partner is ab
    await at.worker.follow()
    assert await at.worker.take("CD") > 0, "not introduced yet: nobody sends, and nothing fails"
    await at.order(1)
    await at.worker.feeder.step(1)
    await at.worker.take("AB")
    assert at.worker.dispatcher.in_flight == 1

    await at.order(1, to="CD")
    await at.worker.recover()
    await at.worker.follow()
    await at.due("CD")
    while await at.worker.feeder.step(1):
        pass
    await at.worker.take("CD")
    assert at.worker.dispatcher.in_flight == 2
    await at.ended()
    assert sorted(entry.id for entry in at.banks.entries()) == ["j:AB1", "j:CD1"]
    assert at.worker.dispatcher.generation == 1, "nobody had to recover for a new partner"


async def test_a_changed_rate_reaches_redis_before_the_next_slot(at: Place) -> None:
    """Between the change and Redis's knowing of it nothing is taken."""
    await _started(at)
    slow = replace(at.worker.dispatcher.outboxes["AB"].partner, qps=7)
    at.worker.adopt(_settings(AB=slow))
    await at.order(1)
    await at.worker.feeder.step(1)
    at.worker.dispatcher.wake("AB")
    await at.worker.take("AB")
    assert at.worker.dispatcher.in_flight == 0
    assert not at.worker.dispatcher.outboxes["AB"].room.is_set(), "it would be asked again and again at once"
    await at.worker.follow()
    pace = at.worker.dispatcher.outboxes["AB"].keys.pace
    assert int(await at.stores.transit.redis.hget(pace, "interval_us")) == slow.interval_us
    await at.worker.take("AB")
    assert at.worker.dispatcher.in_flight == 1
    await at.ended()


async def test_a_partner_that_is_taken_out_ends_what_is_in_flight(at: Place) -> None:
    """Nothing more is taken for it; its outbox is gone once all is recorded, and it is taken up again as it was."""
    await _started(at)
    ab = at.worker.dispatcher.outboxes["AB"].partner
    await at.order(2)
    await at.worker.feeder.step(1)
    await at.worker.take("AB")
    begun = at.worker.dispatcher.in_flight
    assert begun > 0
    at.worker.adopt(_settings())
    await at.worker.take("AB")
    assert at.worker.dispatcher.in_flight == begun
    await at.worker.tidy()
    assert "AB" in at.worker.dispatcher.outboxes
    await at.ended()
    await at.worker.record()
    await at.worker.tidy()
    assert at.worker.dispatcher.outboxes == {}
    succeeded = "SELECT count(*) FROM delivery WHERE status = 'succeeded'"
    assert await at.sql(succeeded) == [(begun,)]
    assert await at.worker.recovery.needed() is None

    at.worker.adopt(_settings(AB=ab))
    while await at.worker.feeder.step(1):
        pass
    while await at.sql(succeeded) != [(2,)]:
        await at.worker.take("AB")
        await at.ended()
        await at.worker.record()
    assert sorted(entry.id for entry in at.banks.entries()) == ["j:AB1", "j:AB2"]


async def test_a_worker_with_tags_sends_to_some_and_serves_all(
    database_url: str, redis_url: str, key_prefix: str, tmp_path: Path
) -> None:
    """It has outboxes of those with its tags only, also after a change; retries of all are released by it."""

    def tagged(to: Partner) -> bool:
        return ("region", "sh") in to.tags

    async with place(database_url, redis_url, key_prefix, tmp_path, drains=tagged) as at:
        assert at.worker.dispatcher.outboxes == {}
        await _started(at)
        ab = at.partner
        await at.order(1)
        await at.worker.feeder.step(1)
        keys = at.stores.transit.keys.partner("AB", ab.tenant)
        assert (await gauges.gauge(at.stores.transit, keys)).batch == 1
        at.worker.adopt(_settings(AB=replace(ab, tags=(("region", "sh"), ("size", "s")))))
        assert at.worker.dispatcher.outboxes.keys() == {"AB"}
        await at.worker.follow()
        await at.worker.take("AB")
        await at.ended()
        assert [entry.id for entry in at.banks.entries()] == ["j:AB1"]


async def test_partners_come_and_go_while_it_works(
    database_url: str, redis_url: str, key_prefix: str, tmp_path: Path
) -> None:
    """By a changed jobs.toml alone: a new partner's payments are sent, and the old one's are not any more."""
    said: list[Settings] = []

    async def configuration() -> Settings | None:
        return said.pop() if said else None

    async with place(
        database_url,
        redis_url,
        key_prefix,
        tmp_path,
        configuration=configuration,
    ) as at:
        stop = asyncio.Event()
        life = asyncio.create_task(at.worker.run(stop))
        await at.order(1)
        await at.until(lambda: len(at.banks.entries()) == 1)
        await at.order(1, to="CD")
        said.append(_settings(CD=replace(at.partner, name="CD", endpoint=at.banks.endpoint("CD"))))
        await at.until(lambda: len(at.banks.entries()) == 2)
        await at.until(lambda: at.worker.dispatcher.outboxes.keys() == {"CD"})
        assert at.worker.ails() == ()
        stop.set()
        await life
        assert await at.sql("SELECT count(*) FROM delivery WHERE status = 'succeeded'") == [(2,)]


async def test_a_live_event_is_routed_fed_and_sent(at: Place) -> None:
    """In one turn, without waiting for the next look at an idle partner; who was taken out gets nothing more."""
    await _started(at)
    by_key = Route("payments", to=(BY_ROUTING_KEY,))
    at.worker.adopt(replace(_settings(AB=at.partner), routes=(by_key,)))
    await inbound.make_groups(at.stores.transit)
    box = at.worker.dispatcher.outboxes["AB"]
    box.room.clear()
    await _accepted(at, "1")
    await at.worker.route()
    assert box.room.is_set()
    await at.worker.take("AB")
    assert at.worker.dispatcher.in_flight == 1
    await at.ended()
    assert [entry.id for entry in at.banks.entries()] == ["shop:1"]

    at.worker.adopt(replace(_settings(), routes=(by_key,)))
    await _accepted(at, "2")
    await at.worker.route()
    assert await at.sql("SELECT count(*) FROM delivery") == [(1,)]
    assert await at.sql("SELECT count(*) FROM unrouted WHERE reason IS NOT NULL") == [(1,)]


async def _accepted(at: Place, event_id: str) -> None:
    """A live event for AB in an inbound shard."""
    event = inbound.Inbound(
        event_id=event_id,
        event_type="payment.created",
        source="shop",
        tenant=at.partner.tenant,
        payload=b"{}",
        body_sha256=bytes(32),
        trace_id="a" * 32,
        created_at=datetime.now(UTC),
        routing_key="AB",
    )
    await inbound.ingest(at.stores.transit, [event], remember=[timedelta(minutes=1)])
