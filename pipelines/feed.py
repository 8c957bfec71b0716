"""The feeder: rows of released batches, in their order, from PostgreSQL into each partner's lanes.

Decisions 3, 4 and 15 of docs/architecture.md. It goes on at what the stream itself says it has, so a crash
anywhere feeds the rest and nothing twice.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import date, datetime
from decimal import Decimal
from itertools import groupby
from typing import NamedTuple

from psycopg import AsyncConnection
from psycopg.rows import TupleRow
from psycopg_pool import AsyncConnectionPool

from sinks.partner import Partner
from sinks.pool import borrow
from sinks.statement import statement
from streams import gauges, lanes, marks
from streams.checkpoint import checkpoint
from streams.delivery import State
from streams.envelope import Envelope, Lane, encode
from streams.keys import LIVE, PartnerKeys, batch_lane, returns_lane
from streams.marks import BATCH_MARKS, LIVE_MARKS, Marks
from streams.money import to_decimal
from streams.scripts import Feed, Refused
from streams.transit import Transit

log = logging.getLogger(__name__)

CHUNK = 300
"""Rows handed over by one script call, for which Redis serves nobody else: about 2 ms."""

_TURN = 50
"""Rows encoded before sends get their turn: a worker that looks away for milliseconds misses its slots."""

_STEP = 5000
_EMPTY = "0-0"


class _Row(NamedTuple):
    """What `feed/next_rows` and `feed/due_rows` select, in their order."""

    event: int
    source: str
    event_id: str
    event_type: str
    routing_key: str
    target_uri: str
    tenant: str
    tags: dict[str, str] | None
    content_type: str
    body: bytes
    trace_id: str
    created_at: datetime
    business_date: date | None
    amount_minor: int | None
    currency: str | None
    order_key: str | None
    partner: str
    batch_id: int | None
    row_number: int | None
    attempts: int
    unknowns: int
    updated_at: datetime
    status: str
    possible_duplicate: bool
    replayed_at: datetime | None
    attempts_before: int
    ended: list[str] | None


class _Batch(NamedTuple):
    """One partner's part of a batch."""

    partner: str
    batch_id: int

    @property
    def lock(self) -> str:
        return f"feed:{self.batch_id}:{self.partner}"


class Feeder:
    """Feeds between the marks. Several may run: a batch's rows for one partner are fed by one at a time."""

    def __init__(
        self,
        pool: AsyncConnectionPool,
        transit: Transit,
        partners: Mapping[str, Partner],
        *,
        high: int = BATCH_MARKS.high,
        low: int = BATCH_MARKS.low,
        live: Marks = LIVE_MARKS,
    ) -> None:
        self._pool = pool
        self._transit = transit
        self._partners = partners
        self._marks = Marks(high=high, low=low)
        self._live = live
        self._resting: set[str] = set()
        self._live_resting: set[str] = set()
        self._next = 0

    async def step(self, generation: int) -> int:
        """Feed up to 5,000 rows, oldest batch of each partner first; returns how many Redis now has more.

        What is full, paused by its mark, held by another feeder or refused is left for a later step. Raises
        `StaleGeneration` where Redis carries another generation, and `StoreUnavailable`.
        """
        # As they are now: one that leaves meanwhile is fed to the end of the step.
        partners = dict(self._partners)
        unfinished = await self._unfinished(generation, partners)
        if not unfinished:
            return 0
        room = await self._room({batch.partner: partners[batch.partner] for batch in unfinished})
        fed = 0
        # Begin with another partner at each step, so that one large batch does not keep the others waiting.
        self._next += 1
        for batch in _in_turn(unfinished, self._next):
            left = min(_STEP - fed, room[batch.partner])
            if left > 0:
                keys = self._keys(partners[batch.partner])
                count = await self._feed(batch, keys, generation=generation, limit=left)
                room[batch.partner] -= count
                fed += count
        self._resting |= {partner for partner, left in room.items() if left <= 0}
        return fed

    async def sweep(self, generation: int, now: datetime, limit: int = CHUNK) -> int:
        """Feed what is due at `now` and not in Redis in this generation; returns how many.

        Live deliveries that the router left here, the oldest first and within the live marks; and retries whose
        delay stream is gone, or that were handed in during a recovery. Raises `StaleGeneration` and
        `StoreUnavailable`.
        """
        partners = dict(self._partners)
        room = await self._live_room(partners)
        read_at_us = await gauges.now_us(self._transit.redis)
        async with borrow(self._pool) as connection:
            await connection.execute(statement("pool/by_key"))
            rows = await _select(
                connection,
                "feed/due_rows",
                {
                    "now": now,
                    "generation": generation,
                    "limit": limit,
                    "partners": list(partners),
                    "rooms": [min(room[name], limit) for name in partners],
                },
            )
            # Before they are handed over: after a loss, what Redis may have had may have been sent.
            await connection.execute(
                statement("feed/note_perhaps"),
                _named([row for row in rows if row.batch_id is None], generation),
            )
        swept = 0
        rows.sort(key=_target)
        for (partner, lane), group in groupby(rows, key=_target):
            some = list(group)
            for i in range(0, len(some), CHUNK):
                chunk = some[i : i + CHUNK]
                result = await self._transit.scripts.feed(
                    self._keys(partners[partner]),
                    generation=generation,
                    lane=lane,
                    expect_last="",
                    read_at_us=read_at_us,
                    rows=await _feeds(chunk, ordered=False),
                )
                checkpoint("sweep-after-feed")
                if isinstance(result, Refused):
                    log_refused(partner, lane, result)
                    break
                async with borrow(self._pool) as connection:
                    await connection.execute(statement("pool/by_key"))
                    await connection.execute(statement("feed/note_swept"), _named(chunk, generation))
                swept += result.fed
        return swept

    async def _live_room(self, partners: Mapping[str, Partner]) -> dict[str, int]:
        keys = [self._keys(partner) for partner in partners.values()]
        counts = await marks.waiting(self._transit, keys, lane=Lane.LIVE)
        room = {
            name: self._live.room(count, resting=name in self._live_resting)
            for name, count in zip(partners, counts, strict=True)
        }
        self._live_resting = {name for name, left in room.items() if left <= 0}
        return room

    async def retire(self, generation: int) -> int:
        """Drop the lanes of batches that are over, or takes would look at all history; returns how many lanes.

        Raises `StaleGeneration` and `StoreUnavailable`.
        """
        partners = dict(self._partners)
        emptied = [
            (name, number)
            for name, partner in partners.items()
            for number in await lanes.emptied(self._transit, self._keys(partner))
        ]
        if not emptied:
            return 0
        async with borrow(self._pool) as connection:
            await connection.execute(statement("pool/by_key"))
            cursor = await connection.execute(
                statement("feed/over"),
                {
                    "generation": generation,
                    "partners": [partner for partner, _ in emptied],
                    "batches": [number for _, number in emptied],
                },
            )
            over = [_Batch(*row) for row in await cursor.fetchall()]
            # Before the lanes, by which the next time finds what is left.
            await connection.execute(statement("feed/drop_locks"), {"names": [batch.lock for batch in over]})
        retired = 0
        for batch in over:
            retired += await self._transit.scripts.retire(
                self._keys(partners[batch.partner]), generation=generation, batch_id=batch.batch_id
            )
        return retired

    async def _unfinished(self, generation: int, partners: Mapping[str, Partner]) -> list[_Batch]:
        async with borrow(self._pool) as connection:
            cursor = await connection.execute(
                statement("feed/unfinished"), {"generation": generation, "partners": list(partners)}
            )
            return [_Batch(*row) for row in await cursor.fetchall()]

    async def _room(self, partners: Mapping[str, Partner]) -> dict[str, int]:
        counts = await marks.waiting(self._transit, [self._keys(each) for each in partners.values()])
        room = {
            name: self._marks.room(count, resting=name in self._resting)
            for name, count in zip(partners, counts, strict=True)
        }
        self._resting -= {name for name, left in room.items() if left > 0}
        return room

    async def _feed(self, batch: _Batch, keys: PartnerKeys, *, generation: int, limit: int) -> int:
        """Feed this batch's next rows, chunk by chunk, while nobody else can."""
        lane = batch_lane(batch.batch_id)
        fed = handled = 0
        async with self._holding(batch.lock) as holder:
            if holder is None:
                return 0
            # Of this generation for certain: a lane that a recovery is about to drop would say that all is fed.
            last = await lanes.open_end(self._transit, keys, lane, generation=generation)
            if last is None:
                return 0
            after = _row_number(last)
            while handled < limit:
                # Before the rows are read: what they rely on is at least as new as this.
                read_at_us = await gauges.now_us(self._transit.redis)
                wanted = min(CHUNK, limit - handled)
                rows = await _select(
                    holder,
                    "feed/next_rows",
                    {"batch": batch.batch_id, "partner": batch.partner, "after": after, "limit": wanted},
                )
                if rows:
                    after = rows[-1].row_number or after
                    await self._note("feed/note_upto", batch, upto=after)
                    checkpoint("feed-after-upto")
                    result = await self._transit.scripts.feed(
                        keys,
                        generation=generation,
                        lane=lane,
                        expect_last=last,
                        read_at_us=read_at_us,
                        rows=await _feeds(rows, ordered=True),
                    )
                    checkpoint("feed-after-xadd")
                    if isinstance(result, Refused):
                        log_refused(batch.partner, lane, result)
                        return fed
                    fed += result.fed
                    handled += len(rows)
                    last = f"1-{after}"
                if len(rows) < wanted:
                    # Nothing pending in the whole batch: no recovery needs to look at it again.
                    finished = after == 0
                    await self._note("feed/note_complete", batch, generation=generation, finished=finished)
                    break
        return fed

    @asynccontextmanager
    async def _holding(self, name: str) -> AsyncIterator[AsyncConnection[TupleRow] | None]:
        """A connection that holds the named lock, None where another one does. Nothing of it is committed."""
        async with borrow(self._pool) as holder:
            cursor = await holder.execute(statement("feed/lock"), {"name": name})
            held = await cursor.fetchone() is not None
            if not held:
                await holder.rollback()
                await holder.execute(statement("feed/make_lock"), {"name": name})
                await holder.commit()
                cursor = await holder.execute(statement("feed/lock"), {"name": name})
                held = await cursor.fetchone() is not None
            try:
                if held:
                    await holder.execute(statement("pool/by_key"))
                yield holder if held else None
            finally:
                await holder.rollback()

    async def _note(self, name: str, batch: _Batch, **values: int | bool) -> None:
        """Commit on a connection of its own, while the holder keeps its lock."""
        async with borrow(self._pool) as connection:
            await connection.execute(
                statement(name), {"batch": batch.batch_id, "partner": batch.partner, **values}
            )

    def _keys(self, partner: Partner) -> PartnerKeys:
        return self._transit.keys.partner(partner.name, partner.tenant)


def _in_turn(batches: Sequence[_Batch], turn: int) -> Iterator[_Batch]:
    """Every batch, partner by partner from another one at each turn, a partner's oldest first."""
    by_partner = [list(group) for _, group in groupby(batches, key=lambda batch: batch.partner)]
    start = turn % len(by_partner)
    for group in (*by_partner[start:], *by_partner[:start]):
        yield from group


async def _select(
    connection: AsyncConnection[TupleRow], name: str, parameters: Mapping[str, object]
) -> list[_Row]:
    async with connection.cursor(binary=True) as cursor:
        await cursor.execute(statement(name), parameters)
        return [_Row(*row) for row in await cursor.fetchall()]


def _row_number(entry: str) -> int:
    """The row at which a batch's own stream ends; 0 where it is not there."""
    return 0 if entry == _EMPTY else int(entry.partition("-")[2])


def _target(row: _Row) -> tuple[str, str]:
    return row.partner, LIVE if row.batch_id is None else returns_lane(row.batch_id)


def _named(rows: Sequence[_Row], generation: int) -> dict[str, object]:
    """These rows and the generation, for a note."""
    return {
        "generation": generation,
        "events": [row.event for row in rows],
        "partners": [row.partner for row in rows],
    }


async def _feeds(rows: Sequence[_Row], *, ordered: bool) -> list[Feed]:
    """As Redis gets them; `ordered` rows have their place in the batch as id."""
    feeds = []
    for number, row in enumerate(rows, start=1):
        feeds.append(_feed(row, entry=f"1-{row.row_number}" if ordered else None))
        if number % _TURN == 0:
            await asyncio.sleep(0)
    return feeds


def _feed(row: _Row, *, entry: str | None) -> Feed:
    envelope = Envelope(
        event_id=row.event_id,
        event_type=row.event_type,
        source=row.source,
        partner=row.partner,
        payload=row.body,
        trace_id=row.trace_id,
        created_at=row.created_at,
        updated_at=row.updated_at,
        lane=Lane.LIVE if row.batch_id is None else Lane.BATCH,
        content_type=row.content_type,
        routing_key=row.routing_key,
        target_uri=row.target_uri,
        tags=row.tags or {},
        retry_count=row.attempts,
        status=State(row.status),
        tenant=row.tenant,
        batch_id=row.batch_id,
        business_date=row.business_date,
        amount=_amount(row),
        currency=row.currency,
        order_key=row.order_key,
        replayed_at=row.replayed_at,
        attempts_before=row.attempts_before,
    )
    return Feed(
        entry=entry,
        delivery=envelope.delivery,
        attempts=row.attempts,
        unknowns=row.unknowns,
        possible_duplicate=row.possible_duplicate,
        ended=tuple(row.ended or ()),
        envelope=encode(envelope),
    )


def _amount(row: _Row) -> Decimal | None:
    if row.amount_minor is None or row.currency is None:
        return None
    return to_decimal(row.amount_minor, row.currency)


def log_refused(partner: str, lane: str, refused: Refused) -> None:
    """Expected now and then, and the next step tries again; a steady stream of these is a fault."""
    fields = {"partner": partner, "lane": lane, "reason": refused.reason, "last": refused.last}
    log.info("feed_refused", extra={"fields": fields})
