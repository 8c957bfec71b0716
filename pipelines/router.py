"""The router: accepted events out of the inbound shards, into the record as deliveries, and on into live lanes.

The rules are in pipelines/route.py. Here is in which order it becomes durable: deliveries are committed, then fed,
then the inbound entry goes. Whatever dies in between, the entry is dealt with once more and finds what was done.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from itertools import groupby

import msgspec
import psycopg
from psycopg_pool import AsyncConnectionPool

from pipelines import deliveries
from pipelines.deliveries import Connection, Decided, Hand, Id, Known, id_of
from pipelines.feed import CHUNK, log_refused
from pipelines.route import Problem, Route, Routed, Rules
from sinks.partner import Partner
from sinks.pool import borrow
from sinks.statement import statement
from streams import gauges, inbound, marks
from streams.checkpoint import checkpoint
from streams.envelope import Lane
from streams.errors import StaleGeneration, TransitLost
from streams.inbound import Inbound, Waiting
from streams.keys import LIVE
from streams.marks import LIVE_MARKS, Marks
from streams.money import MoneyError
from streams.pace import from_us
from streams.scripts import Feed, Refused
from streams.transit import Transit

log = logging.getLogger(__name__)

_NAME = "router"
"""Of all routers in the shards' group. What is in a hand is claimed by how long it has been there, whoever has it;
names of their own would stay in Redis for ever, a few more at each start."""

_READ = 50
"""Entries of each shard in one step."""

_BLOCK = timedelta(seconds=1)
_ABANDONED = timedelta(seconds=30)
_OVERLOOKED = timedelta(seconds=10)
_BEHIND = timedelta(seconds=10)
_SWEPT = 200

_TURN = 50
"""Events worked on before sends get their turn: a worker that looks away for milliseconds misses its slots."""

_RESHAPED = 4096
"""Bytes of payload that are reshaped before sends get their turn, about 1 ms. What is larger is reshaped beside the
loop: a quarter of a megabyte takes up to half a second."""

_EVENTS_FAULT = (
    psycopg.DataError,
    psycopg.IntegrityError,
    MoneyError,
    OverflowError,
    UnicodeError,
)
"""What one event can do to a statement."""


@dataclass(frozen=True, slots=True)
class Step:
    """What one step did: how many events it dealt with and what became of them.

    `fed` are the partners that have something new in Redis.
    """

    events: int = 0
    unroutable: int = 0
    conflicts: int = 0
    quarantined: int = 0
    fed: frozenset[str] = frozenset()

    def __add__(self, other: Step) -> Step:
        return Step(
            self.events + other.events,
            self.unroutable + other.unroutable,
            self.conflicts + other.conflicts,
            self.quarantined + other.quarantined,
            self.fed | other.fed,
        )


@dataclass(frozen=True, slots=True)
class _Took:
    """An inbound entry, the event in it, and what the rules say of it."""

    entry: Waiting
    event: Inbound
    routed: Routed


class Router:
    """Routes what was accepted. Several may run; an event is routed by one of them, once.

    `partners` is looked at anew at each `adopt`, and at each step for what is in Redis.
    """

    def __init__(
        self,
        pool: AsyncConnectionPool,
        transit: Transit,
        partners: Mapping[str, Partner],
        routes: Sequence[Route] = (),
        *,
        live: Marks = LIVE_MARKS,
    ) -> None:
        self._pool = pool
        self._transit = transit
        self._partners = partners
        self._rules = Rules(routes, partners)
        self._marks = live
        self._direct: set[str] = set()
        """Partners whose new deliveries go to Redis at once; those of the others wait in PostgreSQL for sweep."""
        self._left: tuple[Waiting, ...] = ()
        """In hand, from a step that failed: no other router may have it for half a minute."""
        self._routed = self._reshaped = 0

    def adopt(self, routes: Sequence[Route]) -> None:
        """Route by these from now on, to the partners that the shared mapping has now."""
        self._rules = Rules(routes, self._partners)

    async def step(self, generation: int, *, block: timedelta = _BLOCK) -> Step:
        """Route up to 200 events; waits up to `block` for the first. Raises `StoreUnavailable`."""
        if not self._left:
            try:
                self._left = await inbound.read(self._transit, router=_NAME, limit=_READ, block=block)
            except TransitLost:
                made = await inbound.make_groups(self._transit)
                log.info("inbound_groups_made", extra={"fields": {"groups": made}})
                return Step()
            checkpoint("route-after-read")
        return await self._deal(self._left, generation)

    async def claim(self, generation: int, *, idle: timedelta = _ABANDONED) -> Step:
        """Route what another router has had in hand for longer than `idle`. Raises as `step` does."""
        try:
            entries = await inbound.claim(self._transit, router=_NAME, idle=idle, limit=_READ)
        except TransitLost:
            return Step()  # a step makes the group, and begins at the beginning
        mine = {(entry.shard, entry.entry) for entry in self._left}
        return await self._deal([e for e in entries if (e.shard, e.entry) not in mine], generation)

    async def sweep(self, *, older_than: timedelta = _OVERLOOKED, limit: int = _SWEPT) -> Step:
        """Route up to `limit` events of the record that no router came to see for so long.

        Redis was away when they were accepted, or lost them. The feeder's sweep hands their deliveries over.
        Raises `StoreUnavailable`.
        """
        async with borrow(self._pool) as connection:
            await connection.execute(statement("pool/by_key"))
            found = await deliveries.waiting(connection, older_than=older_than, limit=limit)
            decided = [Decided(number, event, await self._route(event)) for number, event in found]
            await deliveries.write(connection, decided, direct=frozenset(), generation=None)
        _tell(decided)
        return _count(decided)

    async def again(self, *, who: str, dry_run: bool = False) -> Step:
        """Route what was unroutable by today's routes, with one audit row; `dry_run` writes nothing.

        Answers how many there were, and how many still are `unroutable`. Raises `StoreUnavailable`.
        """
        done, after = Step(), 0
        async with borrow(self._pool) as connection:
            await connection.execute(statement("pool/by_key"))
            while found := await deliveries.unroutable(connection, after=after, limit=_SWEPT):
                after = found[-1][0]
                decided = [Decided(number, event, await self._route(event)) for number, event in found]
                if not dry_run:
                    await deliveries.write(connection, decided, direct=frozenset(), generation=None)
                done += _count(decided)
            if done.events and not dry_run:
                await connection.execute(
                    statement("route/audit"),
                    {"who": who, "routed": done.events - done.unroutable, "still": done.unroutable},
                )
        return done

    # -- one step -------------------------------------------------------------------------------------------

    async def _deal(self, entries: Sequence[Waiting], generation: int) -> Step:
        """Commit, feed, delete; whatever fails leaves the entries to be dealt with again."""
        if not entries:
            return Step()
        took: list[_Took] = []
        illegible: list[tuple[Waiting, str]] = []
        for entry in entries:
            try:
                event = inbound.decode(entry.data)
            except (msgspec.MsgspecError, ValueError) as error:
                illegible.append((entry, f"{type(error).__name__}: {error}"))
            else:
                took.append(_Took(entry, event, await self._route(event)))
        direct = await self._may_be_fed({to.partner for item in took for to in item.routed.deliveries})
        # Before the rows are read: what they rely on is at least as new as this.
        read_at_us = await gauges.now_us(self._transit.redis)
        async with borrow(self._pool) as connection:
            done, hands = await self._commit(connection, took, direct=direct, generation=generation)
            for entry, why in illegible:
                await deliveries.quarantine(connection, entry, why)
        checkpoint("route-after-commit")
        fed = await self._hand_over(hands, generation=generation, read_at_us=read_at_us)
        checkpoint("route-after-feed")
        await inbound.routed(self._transit, entries)
        checkpoint("route-after-ack")
        gone = {(entry.shard, entry.entry) for entry in entries}
        self._left = tuple(entry for entry in self._left if (entry.shard, entry.entry) not in gone)
        return done + Step(len(illegible), quarantined=len(illegible), fed=fed)

    async def _route(self, event: Inbound) -> Routed:
        """What the rules say; after every event sends get their turn where they need one."""
        rules = self._rules
        size = len(event.payload) if rules.reshapes(event) else 0
        self._routed += 1
        self._reshaped += size
        if self._routed % _TURN == 0 or self._reshaped > _RESHAPED:
            self._reshaped = size
            await asyncio.sleep(0)
        try:
            return await asyncio.to_thread(rules.route, event) if size > _RESHAPED else rules.route(event)
        except (ArithmeticError, LookupError, RecursionError, TypeError, ValueError) as error:
            # One event must not stop all others, whatever a sender found out about a rule.
            return Routed((), (Problem("?", "?", f"{type(error).__name__}: {error}"),))

    async def _may_be_fed(self, names: Iterable[str]) -> frozenset[str]:
        """Those of the partners whose new deliveries go to Redis at once: they are within their live mark.

        Above it, deliveries wait in PostgreSQL until the low mark is reached and nothing older waits there.
        """
        known = {name: self._partners[name] for name in names if name in self._partners}
        keys = [self._transit.keys.partner(name, partner.tenant) for name, partner in known.items()]
        counts = await marks.waiting(self._transit, keys, lane=Lane.LIVE)
        open_again = []
        for name, count in zip(known, counts, strict=True):
            resting = name not in self._direct
            if not self._marks.room(count, resting=resting):
                self._direct.discard(name)
            elif resting:
                open_again.append(name)
        if open_again:
            before = from_us(await gauges.now_us(self._transit.redis)) - _BEHIND
            async with borrow(self._pool) as connection:
                await connection.execute(statement("pool/by_key"))
                cursor = await connection.execute(
                    statement("route/behind"), {"partners": open_again, "before": before}
                )
                behind = {row[0] for row in await cursor.fetchall()}
            self._direct |= set(open_again) - behind
        return frozenset(known) & self._direct

    async def _commit(
        self, connection: Connection, took: Sequence[_Took], *, direct: frozenset[str], generation: int
    ) -> tuple[Step, list[Hand]]:
        """Events, deliveries and conflicts, in one transaction; an event that is refused is found by halving."""
        if not took:
            return Step(), []
        try:
            async with connection.transaction():
                return await _record(connection, took, direct=direct, generation=generation)
        except _EVENTS_FAULT as error:
            if len(took) == 1:
                await deliveries.quarantine(connection, took[0].entry, f"{type(error).__name__}: {error}")
                await connection.commit()
                return Step(1, quarantined=1), []
        done, hands = Step(), list[Hand]()
        middle = len(took) // 2
        for half in (took[:middle], took[middle:]):
            step, some = await self._commit(connection, half, direct=direct, generation=generation)
            done += step
            hands += some
        return done, hands

    async def _hand_over(self, hands: Sequence[Hand], *, generation: int, read_at_us: int) -> frozenset[str]:
        """Feed; what Redis will not have now is left to sweep. Returns the partners that got something."""
        fed = set()
        # In the order of acceptance, whichever shard they came through.
        in_order = sorted(hands, key=lambda h: (h.event.tenant, h.to.partner, h.event.created_at))
        for (tenant, partner), group in groupby(in_order, key=lambda h: (h.event.tenant, h.to.partner)):
            some = list(group)
            for i in range(0, len(some), CHUNK):
                chunk = some[i : i + CHUNK]
                try:
                    result = await self._transit.scripts.feed(
                        self._transit.keys.partner(partner, tenant),
                        generation=generation,
                        lane=LIVE,
                        expect_last="",
                        read_at_us=read_at_us,
                        rows=await _feeds(chunk),
                    )
                except StaleGeneration:  # a recovery, or a partner that Redis does not know yet
                    result = Refused("closed", "")
                if isinstance(result, Refused):
                    log_refused(partner, LIVE, result)
                    await self._leave(partner, some[i:], result, generation=generation)
                    break
                if result.fed:
                    fed.add(partner)
        return frozenset(fed)

    async def _leave(self, partner: str, hands: Sequence[Hand], refused: Refused, *, generation: int) -> None:
        """Note that Redis did not take these, or, where one cannot know, that it perhaps did."""
        self._direct.discard(partner)
        async with borrow(self._pool) as connection:
            await connection.execute(statement("pool/by_key"))
            await connection.execute(
                statement("route/not_fed"),
                {
                    "events": [hand.id for hand in hands],
                    "insteads": [
                        -generation if hand.again or refused.reason == "moved" else None for hand in hands
                    ],
                    "partner": partner,
                    "generation": generation,
                },
            )


async def _record(
    connection: Connection, took: Sequence[_Took], *, direct: frozenset[str], generation: int
) -> tuple[Step, list[Hand]]:
    """Write what is new, in the caller's transaction; answers what is to be fed."""
    await connection.execute(statement("pool/by_key"))
    firsts: dict[Id, _Took] = {}
    for item in took:
        firsts.setdefault(id_of(item.event), item)
    known = await deliveries.find(connection, [item.event for item in firsts.values()])
    missing = [item.event for name, item in firsts.items() if name not in known]
    fresh = await deliveries.insert(connection, missing)
    # Written by somebody else between the two statements.
    known |= await deliveries.find(connection, [event for event in missing if id_of(event) not in fresh])
    for name, number in fresh.items():
        event = firsts[name].event
        known[name] = Known(number, event.body_sha256, event.trace_id, event.created_at, waiting=True)

    decided: dict[int, Decided] = {}
    routed: dict[int, Inbound] = {}
    conflicts = 0
    for item in took:
        there = known[id_of(item.event)]
        if item.event.body_sha256 != there.body_sha256:
            await deliveries.put_aside_conflict(connection, item.event)
            conflicts += 1
        elif there.waiting:
            decided.setdefault(there.id, Decided(there.id, there.as_first(item.event), item.routed))
        else:
            routed[there.id] = there.as_first(item.event)
    hands = await deliveries.write(connection, list(decided.values()), direct=direct, generation=generation)
    hands += await deliveries.standing(connection, routed, generation=generation)
    counted = _count(list(decided.values()))
    _tell(decided.values())
    return Step(len(took), counted.unroutable, conflicts), hands


def _count(decided: Sequence[Decided]) -> Step:
    return Step(len(decided), sum(one.reason is not None for one in decided))


def _tell(decided: Iterable[Decided]) -> None:
    """Say in the log which go nowhere, or not everywhere."""
    for one in decided:
        if one.reason is not None:
            fields = {
                "source": one.event.source,
                "event_id": one.event.event_id,
                "reason": one.reason,
                "trace_id": one.event.trace_id,
            }
            log.warning("event_unroutable", extra={"fields": fields})


async def _feeds(hands: Sequence[Hand]) -> list[Feed]:
    feeds = []
    for number, hand in enumerate(hands, start=1):
        feeds.append(hand.feed())
        if number % _TURN == 0:
            await asyncio.sleep(0)
    return feeds
