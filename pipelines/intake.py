"""The way in: a live event is accepted once, and only when a store holds it.

What arrives together is committed together: while one flush is under way, whatever comes meanwhile gathers for the
next. PostgreSQL is asked first where it is the record; Redis then only carries the event to a router, and what it
did not get is found again by its row in `unrouted`.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import NamedTuple

import msgspec
import psycopg
from psycopg import AsyncConnection
from psycopg.rows import TupleRow
from psycopg_pool import AsyncConnectionPool, PoolTimeout

from pipelines.live_source import Durability, LiveSource
from pipelines.whereabouts import Whereabouts, find
from sinks.event_rows import event_rows
from sinks.pool import borrow
from sinks.statement import statement
from streams.checkpoint import checkpoint
from streams.errors import StoreFull, StoreUnavailable
from streams.inbound import Accepted, Inbound, Ingested, Verdict, ingest
from streams.pace import ClockMap
from streams.transit import Transit

log = logging.getLogger(__name__)

FLUSH_EVENTS = 1000
FLUSH_BYTES = 4 << 20
"""What one flush takes: enough to share the commit, little enough not to keep the next ones waiting."""

MOST_WAITING_BYTES = 64 << 20

_OVERHEAD = 1024
"""What an event takes beside its payload, about."""

_ROOM_FOR_S = 0.1
"""So long after Redis took events it is not asked whether it would take more."""

_MOMENT_S = 0.001
"""So long one reading of the clock serves all who ask: it costs more than half the reading of an event."""

_MOST_CARRIED = 20_000
"""Events on their way from PostgreSQL to Redis; those beyond are left to the routers' sweep."""


class Away(StrEnum):
    """Why nothing can be accepted now. A later try may be."""

    POSTGRES = "postgres_away"
    REDIS = "redis_away"
    FULL = "redis_full"
    BUSY = "busy"
    CLOSING = "closing"


class Unavailable(msgspec.Struct, frozen=True):
    """Not accepted as far as anybody knows; where it was after all, a second try finds a duplicate."""

    away: Away


class Unstorable(msgspec.Struct, frozen=True):
    """PostgreSQL will never take this event; others of the same call are not touched by that."""

    reason: str


Answer = Accepted | Unavailable | Unstorable


class _Known(NamedTuple):
    """What PostgreSQL holds under an id. `fresh`: it came with this very flush."""

    body_sha256: bytes
    trace_id: str
    fresh: bool


_Key = tuple[str, str]


class _Call(msgspec.Struct, frozen=True):
    """Events of one source that are answered together."""

    events: Sequence[Inbound]
    remember: timedelta
    size: int
    answers: asyncio.Future[Sequence[Answer]]


_Flush = Callable[[Sequence[Inbound], Sequence[timedelta]], Awaitable[Sequence[Answer]]]


class _Gathering:
    """Calls for one store. One flush is under way at a time; what comes meanwhile goes with the next."""

    def __init__(self, flush: _Flush) -> None:
        self._flush = flush
        self._calls: deque[_Call] = deque()
        self._task: asyncio.Task[None] | None = None

    def add(self, call: _Call) -> None:
        self._calls.append(call)
        if self._task is None:
            self._task = asyncio.create_task(self._run())

    async def finish(self) -> None:
        if self._task is not None:
            await self._task

    async def _run(self) -> None:
        try:
            while calls := self._together():
                await self._serve(calls)
        finally:
            self._task = None

    def _together(self) -> list[_Call]:
        calls: list[_Call] = []
        events = size = 0
        while self._calls:
            call = self._calls[0]
            if calls and (events + len(call.events) > FLUSH_EVENTS or size + call.size > FLUSH_BYTES):
                break
            self._calls.popleft()
            # Whoever hung up while it waited is not told anything, and comes again if it matters.
            if not call.answers.done():
                calls.append(call)
                events += len(call.events)
                size += call.size
        return calls

    async def _serve(self, calls: Sequence[_Call]) -> None:
        events = [event for call in calls for event in call.events]
        try:
            answers = await self._flush(events, [call.remember for call in calls for _ in call.events])
        except Exception as error:
            log.exception("intake_failed")
            for call in calls:
                if not call.answers.done():
                    call.answers.set_exception(error)
            return
        start = 0
        for call in calls:
            _answer(call, answers[start : start + len(call.events)])
            start += len(call.events)
        if answers and all(isinstance(answer, Unavailable) for answer in answers):
            # Who waits behind a store that is away would wait in vain, and each for longer than the one before.
            while self._calls:
                call = self._calls.popleft()
                _answer(call, [answers[0]] * len(call.events))


class Intake:
    """Accepts events for every source of this process."""

    def __init__(
        self,
        pool: AsyncConnectionPool,
        transit: Transit,
        *,
        deadline: timedelta = timedelta(seconds=10),
        most_waiting: int = 20_000,
    ) -> None:
        """`deadline` is how long a flush may take in PostgreSQL, `most_waiting` how many events may wait.

        A connection to a frozen server is let go up to 10 s after the deadline.
        """
        self._pool = pool
        self._transit = transit
        self._deadline = deadline
        self._most_waiting = most_waiting
        self._gatherings = {
            Durability.POSTGRES: _Gathering(self._into_postgres),
            Durability.REDIS: _Gathering(self._into_redis),
        }
        self._waiting = self._waiting_bytes = 0
        self._closing = False
        self._clock: ClockMap | None = None
        self._now = datetime.now(UTC)
        self._now_until = 0.0
        self._postgres_away = self._redis_away = False
        self._room_until = 0.0
        self._to_carry: list[tuple[Inbound, timedelta]] = []
        self._carrying: asyncio.Task[None] | None = None
        self._health: tuple[Away, ...] = (Away.REDIS, Away.POSTGRES)
        self._told: tuple[Away, ...] = ()
        """What the log says is away."""

    async def accept(self, events: Sequence[Inbound], source: LiveSource) -> Sequence[Answer]:
        """One answer for each event, in order. Cancelling it disturbs nobody; the events may be accepted or not.

        An accepted event is in PostgreSQL, or with `Durability.REDIS` in Redis. Routers see the events of one call
        about in their order: shards have none in common.
        """
        if self._closing:
            return [Unavailable(Away.CLOSING)] * len(events)
        if len(events) == 1:
            sizes = [size := len(events[0].payload) + _OVERHEAD]
        else:
            sizes = [len(event.payload) + _OVERHEAD for event in events]
            size = sum(sizes)
        # A call that is larger than the bound must be possible, too, when nothing else waits.
        if self._waiting and (
            self._waiting + len(events) > self._most_waiting
            or self._waiting_bytes + size > MOST_WAITING_BYTES
        ):
            return [Unavailable(Away.BUSY)] * len(events)
        gathering = self._gatherings[source.durability]
        loop = asyncio.get_running_loop()
        if len(events) <= FLUSH_EVENTS and size <= FLUSH_BYTES:
            calls = [_Call(events, source.remember, size, loop.create_future())]
        else:
            calls = [
                _Call(events[start:stop], source.remember, sum(sizes[start:stop]), loop.create_future())
                for start, stop in _parts(sizes)
            ]
        self._waiting += len(events)
        self._waiting_bytes += size
        try:
            for call in calls:
                gathering.add(call)
            if len(calls) == 1:
                return await calls[0].answers
            return [answer for call in calls for answer in await call.answers]
        finally:
            for call in calls:
                call.answers.cancel()
            self._waiting -= len(events)
            self._waiting_bytes -= size

    async def find(self, source: str, event_id: str) -> Whereabouts | None:
        """Where this source's event is; None: no such event. Raises `StoreUnavailable`."""
        return await find(self._pool, self._transit, source, event_id)

    def now(self) -> datetime:
        """Redis's time, UTC, to the millisecond, also while it is away; this machine's until it has answered once."""
        moment = time.monotonic()
        if moment >= self._now_until:
            self._now_until = moment + _MOMENT_S
            self._now = datetime.now(UTC) if self._clock is None else self._clock.redis(moment)
        return self._now

    async def look(self) -> tuple[Away, ...]:
        """See what is away, as `health` says from then on, and what Redis's clock shows. Call it every second.

        A store that made callers wait in vain is not asked by `accept` again until a look has reached it.
        """
        away = []
        try:
            await self._ingest([], [])
        except StoreFull:
            away.append(Away.FULL)
        except StoreUnavailable:
            away.append(Away.REDIS)
        self._postgres_away = not await self._takes_writes()
        if self._postgres_away:
            away.append(Away.POSTGRES)
        if (was := self._told) != tuple(away):
            self._told = tuple(away)
            log.warning(
                "store_away" if away else "store_back",
                extra={"fields": {"service": "intake", "away": away or was}},
            )
        self._health = tuple(away)
        return self._health

    def health(self) -> tuple[Away, ...]:
        """What was away at the last look; both stores before the first."""
        return self._health

    async def close(self) -> None:
        """Accept nothing more and finish what is under way. Pool and transit stay open."""
        self._closing = True
        for gathering in self._gatherings.values():
            await gathering.finish()
        if self._carrying is not None:
            await self._carrying

    async def _into_redis(self, events: Sequence[Inbound], remember: Sequence[timedelta]) -> Sequence[Answer]:
        try:
            return (await self._ingest(events, remember)).answers
        except StoreFull:
            return [Unavailable(Away.FULL)] * len(events)
        except StoreUnavailable:
            return [Unavailable(Away.REDIS)] * len(events)

    async def _into_postgres(
        self, events: Sequence[Inbound], remember: Sequence[timedelta]
    ) -> Sequence[Answer]:
        if self._postgres_away:
            return [Unavailable(Away.POSTGRES)] * len(events)
        if not await self._room():
            return [Unavailable(Away.FULL)] * len(events)
        try:
            async with asyncio.timeout(self._deadline.total_seconds()):
                known = await self._commit(events)
        except (StoreUnavailable, TimeoutError) as error:
            # What fails at once may be tried again at once; a wait in vain is not asked of each flush anew.
            self._postgres_away |= isinstance(error, TimeoutError) or isinstance(error.__cause__, PoolTimeout)
            log.warning(
                "intake_postgres_away", extra={"fields": {"error": str(error), "events": len(events)}}
            )
            return [Unavailable(Away.POSTGRES)] * len(events)
        checkpoint("intake-after-commit")
        answers = _answers(events, known)
        self._carry(
            [
                (event, lasts)
                for event, lasts, answer in zip(events, remember, answers, strict=True)
                if _is_fresh(answer)
            ]
        )
        return answers

    def _carry(self, fresh: Sequence[tuple[Inbound, timedelta]]) -> None:
        """Have these taken to Redis, in order, while their senders are told: they are committed.

        What does not get there has its row in `unrouted`, by which a router's sweep finds it.
        """
        if self._redis_away or len(self._to_carry) + len(fresh) > _MOST_CARRIED:
            if fresh:
                log.info("intake_left_to_sweep", extra={"fields": {"events": len(fresh)}})
            return
        self._to_carry += fresh
        if self._carrying is None and self._to_carry:
            self._carrying = asyncio.create_task(self._carry_on())

    async def _carry_on(self) -> None:
        try:
            while self._to_carry:
                some, self._to_carry = self._to_carry[:FLUSH_EVENTS], self._to_carry[FLUSH_EVENTS:]
                try:
                    await self._ingest([event for event, _ in some], [lasts for _, lasts in some])
                except StoreUnavailable as error:
                    fields = {"error": str(error), "events": len(some) + len(self._to_carry)}
                    log.info("intake_left_to_sweep", extra={"fields": fields})
                    self._to_carry = []
        finally:
            self._carrying = None

    async def _takes_writes(self) -> bool:
        try:
            async with asyncio.timeout(self._deadline.total_seconds()), borrow(self._pool) as connection:
                row = await (await connection.execute(statement("intake/look"))).fetchone()
                return row is not None and bool(row[0])
        except (StoreUnavailable, TimeoutError):
            return False

    async def _room(self) -> bool:
        """Whether Redis would take more. One that is away refuses nothing: PostgreSQL is the record."""
        if not self._redis_away and time.monotonic() > self._room_until:
            try:
                await self._ingest([], [])
            except StoreFull:
                return False
            except StoreUnavailable:
                pass
        return True

    async def _ingest(self, events: Sequence[Inbound], remember: Sequence[timedelta]) -> Ingested:
        asked = time.monotonic()
        try:
            ingested = await ingest(self._transit, events, remember=remember)
        except StoreUnavailable as error:
            # Until somebody has reached it: waiting for its timeout at each flush would stop PostgreSQL's events.
            self._redis_away = not isinstance(error, StoreFull)
            self._room_until = 0.0
            raise
        self._redis_away = False
        if events:
            self._room_until = asked + _ROOM_FOR_S
            checkpoint("intake-after-ingest")
        self._clock = (self._clock or ClockMap()).narrowed(
            asked=asked, answered=time.monotonic(), redis_us=ingested.now_us
        )
        return ingested

    async def _commit(self, events: Sequence[Inbound]) -> dict[_Key, _Known | Unstorable]:
        """What PostgreSQL knows under the events' ids when they are committed as far as they are new."""
        first: dict[_Key, Inbound] = {}
        for event in events:
            first.setdefault((event.event_id, event.source), event)
        known: dict[_Key, _Known | Unstorable] = {}
        async with borrow(self._pool) as connection:
            await connection.set_autocommit(True)
            try:
                await _insert(connection, [first[key] for key in sorted(first)], known)
            finally:
                if not connection.closed:
                    await connection.set_autocommit(False)
            others = [key for key in first if key not in known]
            if others:
                await connection.execute(statement("pool/by_key"))
                cursor = await connection.execute(
                    statement("intake/known"),
                    {"event_id": [key[0] for key in others], "source": [key[1] for key in others]},
                )
                for source, event_id, body_sha256, trace_id in await cursor.fetchall():
                    known[event_id, source] = _Known(body_sha256, trace_id, fresh=False)
        return known


async def _insert(
    connection: AsyncConnection[TupleRow],
    events: Sequence[Inbound],
    known: dict[_Key, _Known | Unstorable],
) -> None:
    """Put into `known` what was new or is refused. Halves find the one that PostgreSQL does not take.

    In autocommit mode: a statement is its own transaction, and costs one round trip instead of three.
    """
    fresh = {
        (event.event_id, event.source): _Known(event.body_sha256, event.trace_id, fresh=True)
        for event in events
    }
    try:
        cursor = await connection.execute(statement("intake/accept"), {"events": event_rows(events)})
        for source, event_id in await cursor.fetchall():
            known[event_id, source] = fresh[event_id, source]
    except (psycopg.DataError, ValueError) as error:
        if len(events) == 1:
            [event] = events
            fields = {"trace_id": event.trace_id, "source": event.source, "error": str(error)}
            log.warning("event_unstorable", extra={"fields": fields})
            known[event.event_id, event.source] = Unstorable(str(error))
            return
        middle = len(events) // 2
        await _insert(connection, events[:middle], known)
        await _insert(connection, events[middle:], known)


def _answers(events: Sequence[Inbound], known: Mapping[_Key, _Known | Unstorable]) -> list[Answer]:
    """What PostgreSQL knows, as an answer to each event; of one that came twice the first was tried."""
    answers: list[Answer] = []
    told = set()
    for event in events:
        key = (event.event_id, event.source)
        match known.get(key):
            case _Known() as stored if stored.body_sha256 != event.body_sha256:
                answers.append(Accepted(Verdict.CONFLICT, stored.trace_id))
            case _Known() as stored:
                first = stored.fresh and key not in told
                answers.append(Accepted(Verdict.ACCEPTED if first else Verdict.DUPLICATE, stored.trace_id))
            case Unstorable() as refused if key not in told:
                answers.append(refused)
            case _:
                answers.append(Unavailable(Away.BUSY))
        told.add(key)
    return answers


def _is_fresh(answer: Answer) -> bool:
    return isinstance(answer, Accepted) and answer.verdict is Verdict.ACCEPTED


def _answer(call: _Call, answers: Sequence[Answer]) -> None:
    if not call.answers.done():
        call.answers.set_result(answers)


def _parts(sizes: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Where to cut a call so that each part fits a flush: (start, stop), in order."""
    start = size = 0
    for i, more in enumerate(sizes):
        if i > start and (i - start == FLUSH_EVENTS or size + more > FLUSH_BYTES):
            yield start, i
            start, size = i, 0
        size += more
    if sizes:
        yield start, len(sizes)
