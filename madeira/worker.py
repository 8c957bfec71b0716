"""One `madeira work` process: all services of delivery, wired and repeated until it is asked to leave."""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from time import monotonic
from typing import Protocol

from psycopg_pool import AsyncConnectionPool

from madeira.roster import Roster
from madeira.runtime import Crew, Service, insist
from madeira.settings import Settings
from pipelines.cancel import Cancel
from pipelines.control import Control
from pipelines.dispatch import Dispatcher, Meter
from pipelines.feed import Feeder
from pipelines.record import Recorder
from pipelines.recover import Recovery, read_generation
from pipelines.route import Route
from pipelines.router import Router
from pipelines.router import Step as Routing
from pipelines.takeover import Takeover
from sinks.partner import Partner
from sinks.pool import borrow, open_pool
from sinks.statement import statement
from sinks.webhook import Webhook
from streams import gauges
from streams.errors import StaleGeneration, StoreUnavailable
from streams.pace import from_us
from streams.transit import Transit

log = logging.getLogger(__name__)

AWAY = (StoreUnavailable, StaleGeneration)
"""What passes by itself: a store that does not answer, or a generation that recovery is about to settle."""

_IDLE_S = 0.1
_RECORD_AT_MOST = 500


class Counts(Meter, Protocol):
    """What is counted of a worker; `madeira.metrics.Metrics`."""

    def routed(self, n: int = 1) -> None:
        """So many events were routed."""

    def unroutable(self, n: int = 1) -> None:
        """So many events were not, or not everywhere."""


@dataclass(frozen=True, slots=True)
class Stores:
    """The two stores, open."""

    pool: AsyncConnectionPool
    transit: Transit


@asynccontextmanager
async def open_stores(
    database_url: str, redis_url: str, *, key_prefix: str, connections: int = 8
) -> AsyncIterator[Stores]:
    """Connections to both stores, closed on leaving. Neither needs to answer yet."""
    transit = Transit.open(redis_url, key_prefix)
    pool = await open_pool(database_url, name="madeira-work", connections=connections)
    try:
        yield Stores(pool, transit)
    finally:
        await pool.close()
        await transit.close()


class Worker:
    """The services of one process, as steps. `run` repeats them; tests call them."""

    def __init__(
        self,
        stores: Stores,
        webhook: Webhook,
        partners: Mapping[str, Partner],
        *,
        at_once: int = 400,
        routes: Sequence[Route] = (),
        drains: Callable[[Partner], bool] = lambda _: True,
        counts: Counts | None = None,
        configuration: Callable[[], Awaitable[Settings | None]] | None = None,
        keep_up: Callable[[], object] | None = None,
        on_stuck: Callable[[], object] | None = None,
    ) -> None:
        """`drains` are the partners that this process sends to; all else it does for all of them.

        `configuration` looks whether jobs.toml has changed, and gives what it says now.
        """
        self._drains = drains
        self._counts = counts
        self._configuration = configuration
        self._keep_up = keep_up
        self._on_stuck = on_stuck
        self._stores = stores
        self._roster = Roster(partners)
        self._partners = partners = self._roster.partners
        self._adopted = asyncio.Event()
        """There may be partners to introduce."""
        self._working: Crew | None = None
        self._lasting: Crew | None = None
        self.generation = 0
        self._recovering = True
        self._configured: dict[str, tuple[int, Partner]] = {}
        """The rates that we know Redis to have, and under which generation."""
        self._earlier: set[str] = set()
        """Ids of earlier lives of this process whose sends may still be in flight."""
        self.recorder = Recorder(stores.pool, stores.transit, partners)
        self.feeder = Feeder(stores.pool, stores.transit, partners)
        self.recovery = Recovery(stores.pool, stores.transit, partners, self.recorder, wait=asyncio.sleep)
        self.takeover = Takeover(stores.pool, stores.transit, partners, meter=counts)
        self.control = Control(stores.pool, stores.transit, partners)
        self.cancel = Cancel(stores.pool, stores.transit, partners)
        self._routes = routes
        self._receiving = dict(partners)
        """Whom events are routed to: without those that were taken out."""
        self.router = Router(stores.pool, stores.transit, self._receiving, routes)
        self.dispatcher = Dispatcher(
            stores.transit,
            webhook,
            {name: partner for name, partner in partners.items() if drains(partner)},
            worker=new_worker_id(),
            generation=0,
            at_once=at_once,
            meter=counts,
        )

    # -- whom I send to -----------------------------------------------------------------------------------

    def adopt(self, settings: Settings) -> None:
        """From now on by this jobs.toml. Partners that it leaves as they were notice nothing.

        A new one is sent to once a recovery has introduced it, a changed one by its new values from the next send
        on; of one that was taken out nothing more is taken, and what is in flight ends.
        """
        self._routes = settings.routes
        self._roster.adopt(settings.partners, monotonic())
        self._open_and_close()
        self._adopted.set()

    def _open_and_close(self) -> None:
        served = {name: partner for name, partner in self._partners.items() if self._roster.serves(name)}
        self._receiving.clear()
        self._receiving.update(served)
        self.router.adopt(self._routes)
        boxes = self.dispatcher.outboxes
        for name, partner in self._partners.items():
            if name in served and self._drains(partner):
                new = name not in boxes
                if new or boxes[name].leaving or boxes[name].partner is not partner:
                    self.dispatcher.open(partner)
                if new and self._working is not None and self._lasting is not None:
                    self._lasting.add(self._settling(name))
                    self._working.add(self._taking(name))
            elif name in boxes:
                self.dispatcher.close(name)

    async def tidy(self) -> float:
        """Drop the outboxes of partners that were taken out, and then the partners."""
        for name in await self.dispatcher.drop_closed():
            if self._working is not None and self._lasting is not None:
                self._working.remove(f"take {name}")
                self._lasting.remove(f"settle {name}")
        if self._roster.let_go(monotonic(), self.dispatcher.outboxes):
            self._open_and_close()
        return 1.0

    async def follow_configuration(self) -> float:
        """Look at jobs.toml, and go by it where it has changed."""
        if self._configuration is not None:
            settings = await self._configuration()
            if settings is not None:
                self.adopt(settings)
        return 1.0

    # -- who I am -----------------------------------------------------------------------------------------

    async def begin(self) -> None:
        """Register in PostgreSQL, then take a lease, both under a new id; held entries are dropped."""
        worker = new_worker_id()
        found = await read_generation(self._stores.pool)
        # With the number, or the steps would go by the new one and a word on recovery that is older than it.
        self._recovering |= found.recovering or not found.run_id
        # An earlier life of this process may have something in hand: then it has not handed in yet.
        handed_in = self.dispatcher.follow(found.number)
        async with borrow(self._stores.pool) as connection:
            await connection.execute(
                statement("worker/begin"),
                {
                    "id": worker,
                    "host": socket.gethostname(),
                    "pid": os.getpid(),
                    "generation": found.number if handed_in else self.generation,
                },
            )
        self._earlier.add(self.dispatcher.worker)
        try:
            await self.dispatcher.begin(worker)
        except StoreUnavailable:
            # The next try has another id: a recovery would wait for this one, and suspect what it never had.
            self._earlier.add(worker)
            with suppress(StoreUnavailable):
                await self._end(worker)
            raise

    async def _end(self, *workers: str) -> None:
        """These have nothing in hand and never will."""
        async with borrow(self._stores.pool) as connection:
            for worker in workers:
                await connection.execute(statement("worker/end"), {"id": worker})

    async def beat(self) -> float:
        """Renew the lease in Redis; begin again under a new id when it was lost."""
        if not await self.dispatcher.beat():
            await self.begin()
        return 5.0

    async def report(self) -> float:
        """The heartbeat in PostgreSQL; begin again under a new id where ours was closed as silent.

        No recovery waits for a closed record, nor suspects what its worker has in flight.
        """
        if not await self._say(self.generation):
            log.warning("record_closed", extra={"fields": {"worker": self.dispatcher.worker}})
            await self.begin()
        return 5.0

    async def _say(self, generation: int) -> bool:
        """The heartbeat of all ids that this process has had, until nothing of the earlier ones is in flight.

        Without it an earlier id would fall silent, and a recovery would take all that was fed for perhaps sent.
        Returns whether the present id's record is open.
        """
        over = set(self._earlier) if self.dispatcher.in_flight == 0 else set()
        async with borrow(self._stores.pool) as connection:
            cursor = await connection.execute(
                statement("worker/beat"),
                {
                    "ids": [self.dispatcher.worker, *self._earlier],
                    "in_flight": self.dispatcher.in_flight,
                    "generation": generation,
                },
            )
            open_ids = {row[0] for row in await cursor.fetchall()}
            for worker in over & open_ids:
                await connection.execute(statement("worker/end"), {"id": worker})
        self._earlier -= over
        return self.dispatcher.worker in open_ids

    async def follow(self) -> float:
        """Follow PostgreSQL's generation; say so there once everything is handed in under it."""
        found = await read_generation(self._stores.pool)
        self._recovering = found.recovering or not found.run_id  # without a run_id nobody has ever recovered
        if not self._recovering:
            await self._configure(found.number)
        handed_in = self.dispatcher.follow(found.number)
        if found.number > self.generation and handed_in:
            await self._say(found.number)
            self.generation = found.number
        return 0.1 if self._recovering else 0.25

    async def take(self, name: str) -> float:
        """Sends of one partner, once jobs.toml's rates are in Redis: what was there before may have been faster."""
        box = self.dispatcher.outboxes[name]
        if self._configured.get(name) != (self.dispatcher.generation, box.partner):
            box.room.clear()
            return _IDLE_S / 2
        return await self.dispatcher.take(name)

    async def _configure(self, generation: int) -> None:
        """Once per start, generation and change: the rate and bounds of jobs.toml into a partner's pace."""
        for name, partner in list(self._partners.items()):
            if self._configured.get(name) == (generation, partner):
                continue
            with suppress(StaleGeneration):  # a partner that is not introduced yet keeps nobody waiting
                await self._stores.transit.scripts.configure(
                    self._stores.transit.keys.partner(partner.name, partner.tenant),
                    generation=generation,
                    interval_us=partner.interval_us,
                    guard_us=partner.guard // timedelta(microseconds=1),
                    max_in_flight=partner.max_in_flight,
                    floor_percent=partner.batch_floor_percent,
                    breaker=partner.breaker,
                )
                self._configured[name] = generation, partner

    # -- what is done ---------------------------------------------------------------------------------------

    async def recover(self) -> float:
        """Look whether Redis is what PostgreSQL has it to be, and recover where it is not."""
        self._adopted.clear()
        await self.recovery.step()
        return 1.0

    async def record(self) -> float:
        """Outcomes from Redis into PostgreSQL."""
        recorded = await self.recorder.step(_RECORD_AT_MOST)
        return 0.0 if recorded >= _RECORD_AT_MOST else _IDLE_S

    async def forget(self) -> float:
        """Drop from Redis what PostgreSQL has had for a minute."""
        await self.recorder.forget(datetime.now(UTC), timedelta(seconds=60))
        return 5.0

    async def feed(self) -> float:
        """Batch rows into their lanes, up to the high-water mark."""
        if self._recovering:
            return _IDLE_S
        return 0.0 if await self.feeder.step(self.dispatcher.generation) else 2 * _IDLE_S

    async def retire(self) -> float:
        """The lanes of batches that are over, out of Redis."""
        if self._recovering:
            return _IDLE_S
        await self.feeder.retire(self.dispatcher.generation)
        return 600.0  # it reads a whole batch of which only a few last retries wait

    async def sweep(self) -> float:
        """Due deliveries of earlier generations back into their lanes."""
        if self._recovering:
            return _IDLE_S
        now = from_us(await gauges.now_us(self._stores.transit.redis))
        swept = await self.feeder.sweep(self.dispatcher.generation, now)
        return 0.0 if swept else 1.0

    async def route(self) -> float:
        """What was accepted into the lanes of its partners; waits up to a second for it."""
        if self._recovering:
            return _IDLE_S
        return self._routed(await self.router.step(self.dispatcher.generation), idle_s=0.0)

    async def claim(self) -> float:
        """What dead routers had in hand."""
        if self._recovering:
            return _IDLE_S
        return self._routed(await self.router.claim(self.dispatcher.generation), idle_s=5.0)

    async def route_overlooked(self) -> float:
        """What PostgreSQL has and no router came to see."""
        if self._recovering:
            return _IDLE_S
        return self._routed(await self.router.sweep(), idle_s=2.0)

    def _routed(self, done: Routing, *, idle_s: float) -> float:
        for name in done.fed:
            self.dispatcher.wake(name)
        if self._counts is not None and done.events:
            # An event of which one route failed is among the unroutable, and counted there alone.
            self._counts.routed(done.events - done.unroutable - done.conflicts - done.quarantined)
            self._counts.unroutable(done.unroutable)
        return 0.0 if done.events else idle_s

    async def release(self) -> float:
        """Due entries from the delay streams back into their lanes."""
        if self._recovering:
            return _IDLE_S
        released = 0
        for partner in list(self._partners.values()):
            with suppress(StaleGeneration):  # a partner that is not introduced yet keeps nobody waiting
                result = await self._stores.transit.scripts.release(
                    self._stores.transit.keys.partner(partner.name, partner.tenant),
                    generation=self.dispatcher.generation,
                    limit=200,
                )
                released += result.count
        return 0.02 if released else 2 * _IDLE_S

    async def take_over(self) -> float:
        """Settle what dead workers left."""
        if self._recovering:
            return _IDLE_S
        await self.takeover.step(worker=self.dispatcher.worker, generation=self.dispatcher.generation)
        return 3.0

    async def follow_controls(self) -> float:
        """Operators' pauses and cancellations into Redis."""
        if not self._recovering:
            await self.control.apply(self.dispatcher.generation)
            await self.cancel.step(self.dispatcher.generation)
        return 1.0

    async def keep_servers_up(self) -> float:
        """Start embedded servers again that died."""
        if self._keep_up is not None:
            await asyncio.to_thread(self._keep_up)
        return 0.5

    async def partition(self) -> float:
        """The log's partitions for this month and the next."""
        await self.recorder.ensure_partitions(datetime.now(UTC))
        return 3600.0

    # -- repeated -------------------------------------------------------------------------------------------

    def services(self) -> list[Service]:
        """Everything that stops when the worker is asked to leave."""
        services = [
            Service("recover", self.recover, wake=self._adopted, deadline_s=600.0),
            Service("feed", self.feed),
            Service("retire", self.retire),
            Service("sweep", self.sweep),
            Service("route", self.route),
            Service("claim", self.claim),
            Service("route overlooked", self.route_overlooked),
            Service("release", self.release),
            Service("take over", self.take_over),
            Service("forget", self.forget),
            Service("controls", self.follow_controls),
            Service("partitions", self.partition),
            Service("tidy", self.tidy),
        ]
        if self._configuration is not None:
            services.append(Service("configuration", self.follow_configuration))
        services += [self._taking(name) for name in self.dispatcher.outboxes]
        return services

    def _taking(self, name: str) -> Service:
        return Service(f"take {name}", partial(self.take, name), wake=self.dispatcher.outboxes[name].room)

    def _settling(self, name: str) -> Service:
        due = self.dispatcher.outboxes[name].settle_due
        return Service(f"settle {name}", partial(self.dispatcher.settle, name), wake=due)

    def lasting(self) -> list[Service]:
        """Everything that goes on until what is in flight has ended, is settled and recorded."""
        services = [
            Service("beat", self.beat),
            Service("report", self.report),
            Service("follow", self.follow),
            Service("record", self.record),
        ]
        if self._keep_up is not None:
            services.append(Service("servers", self.keep_servers_up))
        services += [self._settling(name) for name in self.dispatcher.outboxes]
        return services

    async def run(self, stop: asyncio.Event) -> None:
        """Work until `stop`; then give back, finish what is in flight, hand in, and leave.

        Leaves within the longest partner timeout + 5 s. Raises what ended a service other than by `stop`.
        """
        done, asked = asyncio.Event(), asyncio.create_task(_moment(stop))
        if not await insist(self.begin, stop=stop, away=AWAY):
            return
        self._lasting = Crew(self.lasting(), stop=done, away=AWAY, grace_s=1.0, on_stuck=self._on_stuck)
        self._working = Crew(self.services(), stop=stop, away=AWAY, on_stuck=self._on_stuck)
        fields = {
            "worker": self.dispatcher.worker,
            "pid": os.getpid(),
            "partners": sorted(self.dispatcher.outboxes),
        }
        log.info("worker_started", extra={"fields": fields})
        async with asyncio.TaskGroup() as group:
            group.create_task(self._lasting.run(), name="lasting")
            await self._working.run()
            await self._leave(done, await asked)

    def ails(self) -> tuple[str, ...]:
        """Names of services that are stuck or whose store is away, `start` before there are any."""
        if self._working is None or self._lasting is None:
            return ("start",)
        return self._working.ails() + self._lasting.ails()

    async def _leave(self, done: asyncio.Event, asked: float) -> None:
        loop = asyncio.get_running_loop()
        longest = max((partner.timeout for partner in self._partners.values()), default=timedelta(0))
        deadline = asked + longest.total_seconds() + 3.0
        try:
            given_back = 0
            while loop.time() < deadline:
                # A store that is away for a moment is no reason to break off what is in flight.
                with suppress(*AWAY):
                    given_back += await self.dispatcher.leave()
                    if self.dispatcher.in_flight == 0 and await self.dispatcher.learn_recorded() == 0:
                        break
                await asyncio.sleep(0.05)
            clean = self.dispatcher.in_flight == 0 and self.dispatcher.unrecorded == 0
            if clean:
                await self._end(self.dispatcher.worker, *self._earlier)
                await self.dispatcher.end()
            log.info("worker_left", extra={"fields": {"given_back": given_back, "clean": clean}})
        except AWAY as error:
            log.warning("worker_left", extra={"fields": {"clean": False, "error": type(error).__name__}})
        finally:
            done.set()


async def _moment(stop: asyncio.Event) -> float:
    """When `stop` was set, by the loop's clock."""
    await stop.wait()
    return asyncio.get_running_loop().time()


def new_worker_id() -> str:
    """An id that nobody had before."""
    return secrets.token_hex(8)
