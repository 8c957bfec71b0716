"""Live events and their deliveries in the record: found, inserted, written as the rules decided, put aside.

Every function works inside its caller's transaction, which has `pool/by_key` set.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from typing import NamedTuple

import msgspec
from psycopg import AsyncConnection
from psycopg.rows import TupleRow

from pipelines.route import Addressed, Routed
from sinks.event_rows import event_rows
from sinks.journal import clean
from sinks.statement import statement
from streams.envelope import encode
from streams.inbound import Inbound, Waiting
from streams.money import to_decimal
from streams.scripts import Feed

log = logging.getLogger(__name__)

NO_ROUTE = "no route takes it"

Connection = AsyncConnection[TupleRow]

Id = tuple[str, str]
"""Source and event id."""


def id_of(event: Inbound) -> Id:
    """What makes an event the same one."""
    return event.source, event.event_id


class Known(NamedTuple):
    """An event that the record has. `waiting`: nobody has routed it; it is locked for us then."""

    id: int
    body_sha256: bytes
    trace_id: str
    created_at: datetime
    waiting: bool

    def as_first(self, event: Inbound) -> Inbound:
        """The same event as it came first: the journal goes by that time."""
        if (event.trace_id, event.created_at) == (self.trace_id, self.created_at):
            return event
        return msgspec.structs.replace(event, trace_id=self.trace_id, created_at=self.created_at)


class _Stored(NamedTuple):
    """What `route/waiting` and `route/unroutable` select, in their order."""

    id: int
    source: str
    event_id: str
    event_type: str
    routing_key: str
    target_uri: str
    tenant: str
    tags: dict[str, str] | None
    content_type: str
    body: bytes
    body_sha256: bytes
    trace_id: str
    created_at: datetime
    business_date: date | None
    amount_minor: int | None
    currency: str | None
    order_key: str | None

    def event(self) -> Inbound:
        amount = None
        if self.amount_minor is not None and self.currency is not None:
            amount = to_decimal(self.amount_minor, self.currency)
        return Inbound(
            event_id=self.event_id,
            event_type=self.event_type,
            source=self.source,
            tenant=self.tenant,
            payload=self.body,
            body_sha256=self.body_sha256,
            trace_id=self.trace_id,
            created_at=self.created_at,
            content_type=self.content_type,
            routing_key=self.routing_key,
            target_uri=self.target_uri,
            tags=self.tags or {},
            business_date=self.business_date,
            amount=amount,
            currency=self.currency,
            order_key=self.order_key,
        )


@dataclass(frozen=True, slots=True)
class Decided:
    """An event of the record, by its number there, and what the rules say of it."""

    id: int
    event: Inbound
    routed: Routed

    @property
    def reason(self) -> str | None:
        """Why it, or a part of it, goes nowhere; None where all of it goes."""
        if self.routed.problems:
            return "; ".join(
                f"route {', '.join(filter(None, (problem.route, problem.partner)))}: {problem.why}"
                for problem in self.routed.problems
            )
        return None if self.routed.deliveries else NO_ROUTE


@dataclass(frozen=True, slots=True)
class Hand:
    """A pending delivery that is to be handed to Redis; `again` where somebody may have done so already."""

    id: int
    event: Inbound
    to: Addressed
    attempts: int = 0
    unknowns: int = 0
    possible_duplicate: bool = False
    again: bool = False

    def feed(self) -> Feed:
        """As Redis gets it."""
        envelope = self.event.to_partner(self.to.partner, payload=self.to.body, target_uri=self.to.target_uri)
        return Feed(
            entry=None,
            delivery=envelope.delivery,
            attempts=self.attempts,
            unknowns=self.unknowns,
            possible_duplicate=self.possible_duplicate,
            envelope=encode(envelope),
        )


async def find(connection: Connection, events: Sequence[Inbound]) -> dict[Id, Known]:
    """Those that the record has. The waiting ones stay locked; one that somebody routed meanwhile waits no more."""
    if not events:
        return {}
    rows = await _rows(
        connection,
        "route/find",
        {"sources": [e.source for e in events], "event_ids": [e.event_id for e in events]},
    )
    return {(source, event_id): Known(*rest) for source, event_id, *rest in rows}


async def insert(connection: Connection, events: Sequence[Inbound]) -> dict[Id, int]:
    """Write events that were not there, and answer their numbers; one that somebody else just wrote is left out."""
    if not events:
        return {}
    rows = await _rows(connection, "route/insert", {"events": event_rows(events)})
    return {(source, event_id): number for source, event_id, number in rows}


async def write(
    connection: Connection, decided: Sequence[Decided], *, direct: frozenset[str], generation: int | None
) -> list[Hand]:
    """Write what was decided; answers the new deliveries to `direct` partners, noted as fed in `generation`."""
    if not decided:
        return []
    pairs = [(one, to) for one in decided for to in one.routed.deliveries]
    shaped = [(one, to) for one, to in pairs if to.body is not None or to.target_uri != one.event.target_uri]
    failed = [(one, reason) for one in decided if (reason := one.reason) is not None]
    rows = await _rows(
        connection,
        "route/write",
        {
            "events": [one.id for one, _ in pairs],
            "partners": [to.partner for _, to in pairs],
            "feds": [generation if to.partner in direct else None for _, to in pairs],
            "due_ats": [one.event.created_at for one, _ in pairs],
            "shaped_events": [one.id for one, _ in shaped],
            "shaped_partners": [to.partner for _, to in shaped],
            "target_uris": [to.target_uri for _, to in shaped],
            "bodies": [to.body for _, to in shaped],
            "routed": [one.id for one in decided if one.reason is None],
            "unroutable": [one.id for one, _ in failed],
            "reasons": [clean(reason) for _, reason in failed],
        },
    )
    fresh = {(event, partner) for event, partner in rows}
    return [
        Hand(one.id, one.event, to)
        for one, to in pairs
        if to.partner in direct and (one.id, to.partner) in fresh
    ]


async def standing(connection: Connection, events: Mapping[int, Inbound], *, generation: int) -> list[Hand]:
    """Deliveries of these events that are pending and noted as fed in this generation: some router died there."""
    if not events:
        return []
    rows = await _rows(connection, "route/standing", {"events": list(events), "generation": generation})
    return [
        Hand(
            event,
            events[event],
            Addressed(partner, events[event].target_uri if uri is None else uri, body),
            attempts,
            unknowns,
            flag,
            again=True,
        )
        for event, partner, attempts, unknowns, flag, uri, body in rows
    ]


async def waiting(connection: Connection, *, older_than: timedelta, limit: int) -> list[tuple[int, Inbound]]:
    """The oldest events that nobody has routed for so long; those that somebody has locked are left out."""
    rows = await _rows(connection, "route/waiting", {"older_than": older_than, "limit": limit})
    return [(row[0], _Stored(*row).event()) for row in rows]


async def unroutable(connection: Connection, *, after: int, limit: int) -> list[tuple[int, Inbound]]:
    """The next events, by number, that no route took or one could not; locked."""
    rows = await _rows(connection, "route/unroutable", {"after": after, "limit": limit})
    return [(row[0], _Stored(*row).event()) for row in rows]


async def chosen(connection: Connection, *, after: int, limit: int) -> list[tuple[int, Inbound]]:
    """The next live events, by number, of what was chosen for a replay."""
    rows = await _rows(connection, "dead/live_chosen", {"after": after, "limit": limit})
    return [(row[0], _Stored(*row).event()) for row in rows]


async def put_aside_conflict(connection: Connection, event: Inbound) -> None:
    """An id that came again with another body: kept for somebody to look at, never sent."""
    await connection.execute(
        statement("route/conflict"),
        {
            "source": event.source,
            "event_id": event.event_id,
            "tenant": event.tenant,
            "event_type": event.event_type,
            "trace_id": event.trace_id,
            "body": event.payload,
            "body_sha256": event.body_sha256,
        },
    )
    fields = {"source": event.source, "event_id": event.event_id, "trace_id": event.trace_id}
    log.warning("event_conflict", extra={"fields": fields})


async def quarantine(connection: Connection, entry: Waiting, error: str) -> None:
    """An inbound entry that cannot be read or written, with its bytes."""
    await connection.execute(
        statement("route/quarantine"),
        {"shard": entry.shard.stream, "entry": entry.entry, "data": entry.data, "error": clean(error)},
    )
    fields = {"shard": entry.shard.stream, "entry": entry.entry, "error": error}
    log.error("inbound_quarantined", extra={"fields": fields})


async def _rows(connection: Connection, name: str, parameters: Mapping[str, object]) -> list[TupleRow]:
    async with connection.cursor(binary=True) as cursor:
        await cursor.execute(statement(name), parameters)
        return await cursor.fetchall()
