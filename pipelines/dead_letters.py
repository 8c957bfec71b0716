"""Dead letters: which deliveries came to nothing, chosen by what an operator knows of them, counted and listed.

Every action on them chooses the same way, in one transaction and under one lock: `chosen`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from datetime import date, datetime
from decimal import Decimal

import msgspec
from psycopg import AsyncConnection
from psycopg.rows import TupleRow, class_row
from psycopg_pool import AsyncConnectionPool

from sinks.pool import borrow
from sinks.statement import statement
from streams.delivery import MOVES, Cause, Move
from streams.envelope import Lane

Connection = AsyncConnection[TupleRow]

_FETCHED = 2_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Filter:
    """What is meant; everything that is given must hold, and nothing given means all.

    `key` is `source:event_id`. `day` is the business date, of events without one the UTC day of their acceptance.
    `before`: accepted before then. `least` and `most` are minor units of `currency`. `lane` is the one by which the
    event came in, which a replay does not change.
    """

    partner: str | None = None
    cause: str | None = None
    job: str | None = None
    key: str | None = None
    day: date | None = None
    before: datetime | None = None
    currency: str | None = None
    least: int | None = None
    most: int | None = None
    lane: Lane | None = None

    def parameters(self) -> dict[str, object]:
        """As the statements want them."""
        source, _, event_id = (self.key or "").partition(":")
        return {
            "partner": self.partner,
            "cause": self.cause,
            "job": self.job,
            "source": source or None,
            "event_id": event_id or None,
            "day": self.day,
            "before": self.before,
            "currency": self.currency,
            "least": self.least,
            "most": self.most,
            "batch": None if self.lane is None else self.lane is Lane.BATCH,
        }

    def facts(self) -> dict[str, object]:
        """What is given, for an audit row."""
        return {name: value for name, value in asdict(self).items() if value is not None}

    def words(self) -> str:
        """What is given, in one line."""
        return ", ".join(f"{name} {value}" for name, value in self.facts().items()) or "all"


@dataclass(frozen=True, slots=True)
class Group:
    """Dead letters of one cause, partner or job, and one currency. `minor` is None where none has an amount."""

    name: str
    currency: str | None
    count: int
    minor: Decimal | None
    oldest: datetime


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """One delivery that came to nothing."""

    source: str
    event_id: str
    partner: str
    cause: str
    last_error: str | None
    last_status_code: int | None
    attempts: int
    possible_duplicate: bool
    event_type: str
    created_at: datetime
    dead_since: datetime
    business_date: date | None
    live: bool
    amount_minor: int | None
    currency: str | None
    trace_id: str


@dataclass(frozen=True, slots=True)
class Sums:
    """What an action is about, by partner, cause (or status) and currency; `left_out` says why it is not touched."""

    left_out: str
    partner: str
    cause: str
    currency: str | None
    count: int
    minor: Decimal | None


async def groups(pool: AsyncConnectionPool, which: Filter, *, by: str) -> list[Group]:
    """Counts and sums `by` cause, partner or job (of live events their source), the largest first."""
    async with borrow(pool) as connection, connection.cursor(row_factory=class_row(Group)) as cursor:
        await cursor.execute(statement("dead/session"))
        await cursor.execute(statement("dead/groups"), {**which.parameters(), "by": by})
        return await cursor.fetchall()


async def letters(
    pool: AsyncConnectionPool, which: Filter, *, limit: int | None = None
) -> AsyncIterator[DeadLetter]:
    """Each of them in the order in which they came in; never more than a few thousand in memory."""
    async with borrow(pool) as connection:
        await connection.execute(statement("dead/session"))
        async with connection.cursor("dead_letters", row_factory=class_row(DeadLetter)) as cursor:
            cursor.itersize = _FETCHED
            await cursor.execute(statement("dead/list"), {**which.parameters(), "limit": limit})
            async for letter in cursor:
                yield letter


@asynccontextmanager
async def chosen(pool: AsyncConnectionPool, which: Filter, *, pick: str) -> AsyncIterator[Connection]:
    """A transaction in which the table `chosen` holds what the statement `pick` chooses, locked.

    Committed at the end, unless the caller rolled back. Raises `StoreUnavailable`.
    """
    async with borrow(pool) as connection:
        await connection.execute(statement("dead/session"))
        await connection.execute(statement("dead/lock"))
        await connection.execute(statement("dead/chosen"))
        await connection.execute(statement(pick), which.parameters())
        await connection.execute(statement("dead/arrived"), {"unknown": Cause.UNKNOWN})
        yield connection


async def sums(connection: Connection) -> tuple[Sums, ...]:
    """What `chosen` holds."""
    async with connection.cursor(row_factory=class_row(Sums)) as cursor:
        await cursor.execute(statement("dead/chosen_sums"))
        return tuple(await cursor.fetchall())


async def audit(
    connection: Connection, action: str, which: Filter, *, who: str, why: str, **detail: object
) -> int:
    """Write the audit row; answers its number."""
    facts = {"filter": which.facts(), **detail}
    cursor = await connection.execute(
        statement("dead/audit"),
        {
            "who": who,
            "action": action,
            "target": which.words(),
            "why": why,
            "detail": msgspec.json.encode(facts, enc_hook=str).decode(),
        },
    )
    row = await cursor.fetchone()
    assert row is not None, "an insert answers its row"
    return int(row[0])


def as_detail(found: Sequence[Sums]) -> list[Mapping[str, object]]:
    """Counts and sums for an audit row."""
    return [asdict(one) for one in found]


async def resolve(
    pool: AsyncConnectionPool, which: Filter, *, delivered: bool, who: str, note: str
) -> list[str]:
    """Settle by hand dead deliveries that may have arrived; answers their partners, none where there is none.

    `delivered`: the partner has it. Otherwise it does not, and it may be replayed as if it had never been sent.
    """
    said = f"{'delivered' if delivered else 'not delivered'}, says {who}: {note}"
    async with chosen(pool, which, pick="dead/pick") as connection:
        cursor = await connection.execute(
            statement("dead/resolve"),
            {
                "delivered": delivered,
                "not_delivered": Cause.NOT_DELIVERED,
                "said": said,
                "may_confirm": [state.value for state, moves in MOVES.items() if Move.CONFIRM in moves],
            },
        )
        partners = sorted(row[0] for row in await cursor.fetchall())
        if partners:
            await audit(
                connection, "dead resolve", which, who=who, why=note, delivered=delivered, partners=partners
            )
    return partners
