"""Where an accepted event is: waiting, without a partner, or on its way, with every attempt so far."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from psycopg import AsyncConnection
from psycopg.rows import TupleRow
from psycopg_pool import AsyncConnectionPool

from sinks.pool import borrow
from sinks.statement import statement
from streams.delivery import State
from streams.inbound import seen
from streams.transit import Transit


class Stage(StrEnum):
    """How far an accepted event has come."""

    WAITING = "waiting"
    UNROUTABLE = "unroutable"
    ROUTED = "routed"


@dataclass(frozen=True, slots=True)
class Try:
    """One recorded attempt. `sent_at` is None when nothing left; `outcome` a word of `streams.delivery.Kind`."""

    number: int
    sent_at: datetime | None
    status_code: int | None
    outcome: str
    reason: str
    may_have_arrived: bool


@dataclass(frozen=True, slots=True)
class Sending:
    """An event's delivery to one partner. `next_attempt_at` only while it is retrying."""

    partner: str
    status: State
    possible_duplicate: bool
    next_attempt_at: datetime | None
    attempts: tuple[Try, ...]


@dataclass(frozen=True, slots=True)
class Whereabouts:
    """An accepted event. `reason` says why a route could not take it.

    `event_type` and `accepted_at` are None while only Redis's mark says that the event was accepted.
    """

    source: str
    event_id: str
    trace_id: str
    stage: Stage
    event_type: str | None = None
    accepted_at: datetime | None = None
    reason: str | None = None
    deliveries: tuple[Sending, ...] = ()


async def find(pool: AsyncConnectionPool, transit: Transit, source: str, event_id: str) -> Whereabouts | None:
    """The event of this very source; None where neither store knows it. Raises `StoreUnavailable`."""
    async with borrow(pool) as connection:
        recorded = await _recorded(connection, source, event_id)
    if recorded is not None:
        return recorded
    trace_id = await seen(transit, source, event_id)
    return None if trace_id is None else Whereabouts(source, event_id, trace_id, Stage.WAITING)


async def _recorded(connection: AsyncConnection[TupleRow], source: str, event_id: str) -> Whereabouts | None:
    names = {"source": source, "event_id": event_id}
    await connection.execute(statement("pool/by_key"))
    row = await (await connection.execute(statement("intake/find"), names)).fetchone()
    if row is None:
        return None
    event, event_type, trace_id, accepted_at, reason = row
    tries: dict[str, list[Try]] = {}
    cursor = await connection.execute(statement("intake/attempts"), names)
    for partner, *attempt in await cursor.fetchall():
        tries.setdefault(partner, []).append(Try(*attempt))
    cursor = await connection.execute(statement("intake/deliveries"), {"event": event})
    deliveries = tuple(
        Sending(partner, State(status), doubtful, due_at, tuple(tries.get(partner, ())))
        for partner, status, doubtful, due_at in await cursor.fetchall()
    )
    unsent = Stage.WAITING if reason is None else Stage.UNROUTABLE
    return Whereabouts(
        source,
        event_id,
        trace_id,
        Stage.ROUTED if deliveries else unsent,
        event_type=event_type,
        accepted_at=accepted_at,
        reason=reason,
        deliveries=deliveries,
    )
