"""A released batch on real servers, and a worker's part of the work, for tests of recorder and feeder."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta

import msgspec
from psycopg_pool import AsyncConnectionPool

from pipelines.feed import Feeder
from pipelines.record import Recorder
from sinks.partner import Partner
from sinks.pool import borrow, open_pool
from streams.delivery import Attempt, Cause, Kind, State
from streams.keys import PartnerKeys
from streams.lanes import drop_transit
from streams.marks import LIVE_MARKS, Marks
from streams.scripts import Entry, Settled, Settlement
from streams.transit import Transit

NOW = datetime(2026, 3, 2, 1, 15, tzinfo=UTC)
JOB = "payment-orders"
WORKER = "worker-1"
ENCODER = msgspec.msgpack.Encoder()


def partner(name: str) -> Partner:
    """A partner so fast that pace plays no part."""
    return Partner(name=name, endpoint="https://bank.example/", qps=1_000_000, max_in_flight=1_000_000)


@dataclass(frozen=True, slots=True)
class Night:
    """Both stores, two partners, generation 1, and the steps that are tested."""

    pool: AsyncConnectionPool
    transit: Transit
    partners: dict[str, Partner]
    recorder: Recorder
    feeder: Feeder

    def keys(self, name: str = "AB") -> PartnerKeys:
        """Redis keys of a partner."""
        return self.transit.keys.partner(name)

    async def sql(self, query: str, **values: object) -> list[tuple[object, ...]]:
        """Rows of a query, committed; none for a statement that gives none."""
        async with borrow(self.pool) as connection:
            cursor = await connection.execute(query.encode(), values)
            return await cursor.fetchall() if cursor.description else []

    async def open(self, generation: int) -> None:
        """What recovery does: another generation, transit dropped, open."""
        await self.close(generation)
        for name in self.partners:
            keys = self.keys(name)
            await drop_transit(self.transit, keys)
            await self.transit.scripts.unfence(
                keys,
                generation=generation,
                interval_us=1,
                guard_us=0,
                max_in_flight=1_000_000,
                floor_percent=20,
                paused=False,
            )
            # Fence leaves a second without a send, which nobody here needs to wait for.
            await self.transit.redis.hset(keys.pace, "tat", 0)
        await self.sql("UPDATE generation SET state = 'open'")

    async def close(self, generation: int) -> None:
        """What recovery begins with: everybody else is stale, only settle passes."""
        await self.sql("UPDATE generation SET number = %(n)s, state = 'recovering'", n=generation)
        await self.recorder.introduce(list(self.partners), generation)
        for name in self.partners:
            await self.transit.scripts.fence(self.keys(name), generation=generation, guard_us=0)

    async def release(self, rows: int, name: str = "AB", *, start: datetime = NOW) -> int:
        """A released batch of `rows` orders for one partner; answers its number."""
        [(number,)] = await self.sql(
            """WITH b AS (
                   INSERT INTO batch (job, business_date, revision, state)
                   SELECT %(job)s, %(day)s, 1 + count(*), 'released' FROM batch RETURNING id
               ), e AS (
                   INSERT INTO event (source, event_id, event_type, body, body_sha256, trace_id, created_at,
                                      batch_id, business_date, amount_minor, currency)
                   SELECT %(job)s, b.id || ':' || n, 'payment', convert_to('{"n":' || n || '}', 'UTF8'), '',
                          't' || n, %(start)s, b.id, %(day)s, n * 100, 'CZK'
                   FROM b, generate_series(1, %(rows)s) AS n RETURNING id, event_id, batch_id
               ), d AS (
                   INSERT INTO delivery (event, partner, row_number, batch_id, updated_at)
                   SELECT id, %(partner)s, split_part(event_id, ':', 2)::integer, batch_id, %(start)s FROM e
               )
               INSERT INTO batch_partner (batch_id, partner, rows)
               SELECT id, %(partner)s, %(rows)s FROM b RETURNING batch_id""",
            job=JOB,
            day=date(2026, 3, 2),
            start=start,
            partner=name,
            rows=rows,
        )
        assert isinstance(number, int)
        return number

    async def take(
        self, limit: int, *, generation: int = 1, worker: str = WORKER, name: str = "AB"
    ) -> tuple[Entry, ...]:
        """What one take gives to a worker."""
        take = await self.transit.scripts.take(
            self.keys(name),
            generation=generation,
            worker=worker,
            limit=limit,
            horizon=timedelta(seconds=2),
            held=(),
        )
        return tuple(slot.entry for slot in take.slots if slot.entry is not None)

    async def settle(self, *settlements: Settlement, generation: int = 1, name: str = "AB") -> Settled:
        """Hand outcomes to Redis."""
        return await self.transit.scripts.settle(
            self.keys(name), generation=generation, settlements=settlements
        )

    async def statuses(self) -> dict[str, str]:
        """Every delivery's status by event id."""
        rows = await self.sql(
            "SELECT event_id, status::text FROM delivery JOIN event ON event.id = delivery.event"
        )
        return {str(event_id): str(status) for event_id, status in rows}

    async def open_deliveries(self, name: str = "AB") -> dict[str, str]:
        """The partner's `open` hash."""
        found: dict[bytes, bytes] = await self.transit.redis.hgetall(self.keys(name).open)
        return {delivery.decode(): where.decode() for delivery, where in found.items()}


@asynccontextmanager
async def night(
    database_url: str,
    redis_url: str,
    key_prefix: str,
    names: Sequence[str] = ("AB", "CD"),
    live: Marks = LIVE_MARKS,
    **marks: int,
) -> AsyncIterator[Night]:
    """Stores in generation 1, open; `marks` are the feeder's `high` and `low`."""
    partners = {name: partner(name) for name in names}
    pool = await open_pool(database_url, name="test", connections=6)
    transit = Transit.open(redis_url, key_prefix)
    try:
        found = Night(
            pool,
            transit,
            partners,
            Recorder(pool, transit, partners),
            Feeder(pool, transit, partners, live=live, **marks),
        )
        await found.open(1)
        yield found
    finally:
        await pool.close()
        await transit.close()


def attempt(
    entry: Entry,
    state: State,
    *,
    generation: int = 1,
    name: str = "AB",
    number: int = 1,
    outcome: Kind | None = None,
    reason: str = "as told",
    possible_duplicate: bool = False,
    status_code: int | None = 200,
    excerpt: str = "",
    created_at: datetime = NOW,
) -> Attempt:
    """How an attempt of this entry ended."""
    source, _, event_id = entry.delivery.partition(":")
    kinds = {State.SUCCEEDED: Kind.SUCCEEDED, State.RETRYING: Kind.RETRY, State.DEAD: Kind.DEAD}
    kind = outcome or kinds[state]
    return Attempt(
        attempt_id=f"{name}/{generation}/{entry.place.lane}/{entry.place.entry}",
        source=source,
        event_id=event_id,
        partner=name,
        created_at=created_at,
        number=number,
        unknowns=1 if kind is Kind.UNKNOWN else 0,
        worker=WORKER,
        trace_id="trace",
        started_at=NOW,
        sent_at=NOW,
        elapsed_ms=12,
        status_code=status_code,
        outcome=kind,
        reason=reason,
        may_have_arrived=kind is Kind.UNKNOWN,
        possible_duplicate=possible_duplicate,
        excerpt=excerpt,
        state=state,
        cause=Cause.REFUSED if state is State.DEAD else None,
        due_at=NOW + timedelta(seconds=60) if state is State.RETRYING else None,
    )


def settlement(entry: Entry, attempted: Attempt, *, outcome: bytes | None = None) -> Settlement:
    """What a worker hands to settle for it; `outcome` replaces the bytes that the recorder will read."""
    retrying = attempted.state is State.RETRYING
    return Settlement(
        place=entry.place,
        delivery=entry.delivery,
        attempt_id=attempted.attempt_id,
        state=attempted.state,
        attempts=attempted.number,
        unknowns=attempted.unknowns,
        possible_duplicate=False,
        delay_s=60 if retrying else None,
        due_ms=int((NOW + timedelta(seconds=60)).timestamp() * 1000) if retrying else None,
        outcome=ENCODER.encode(attempted) if outcome is None else outcome,
    )
