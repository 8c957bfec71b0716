"""`madeira trace`: one event's way: what it is, where it stands, every attempt.

It is read from the record; of a live event that only Redis has so far, its mark says that it was accepted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import date, datetime

from psycopg.rows import class_row
from psycopg_pool import AsyncConnectionPool

from madeira import show
from madeira.settings import Settings
from madeira.wiring import servers
from madeira.worker import open_stores
from sinks.pool import borrow
from sinks.statement import statement
from streams import inbound
from streams.transit import Transit


@dataclass(frozen=True, slots=True)
class Traced:
    """One event for one partner; `partner` is None while it has none, `status` then says waiting or unroutable.

    `reason` says why the event, or a part of it, goes nowhere; `target_uri` is empty for the partner's endpoint, and
    `reshaped` where a route made another body. `conflicts`: how often the id came again with another body.
    `known_to` is `record`, or `redis` where all that is known is that it was accepted.
    """

    source: str
    event_id: str
    trace_id: str
    event_type: str = ""
    created_at: datetime | None = None
    business_date: date | None = None
    amount_minor: int | None = None
    currency: str | None = None
    bytes: int | None = None
    partner: str | None = None
    status: str = "waiting"
    attempts: int = 0
    possible_duplicate: bool = False
    due_at: datetime | None = None
    cause: str | None = None
    last_error: str | None = None
    batch_id: int | None = None
    row_number: int | None = None
    updated_at: datetime | None = None
    reason: str | None = None
    target_uri: str = ""
    reshaped: bool = False
    known_to: str = "record"
    conflicts: int = 0


@dataclass(frozen=True, slots=True)
class TracedAttempt:
    """One attempt as the journal has it."""

    partner: str
    number: int
    started_at: datetime
    sent_at: datetime | None
    elapsed_ms: int
    status_code: int | None
    outcome: str
    reason: str
    may_have_arrived: bool
    possible_duplicate: bool
    late: bool
    worker: str
    attempt_id: str
    excerpt: str


async def trace_of(settings: Settings, event_id: str, *, as_json: bool) -> int:
    """Print one event's way; 1 if nobody knows the id. Raises `StoreUnavailable`."""
    with servers(settings) as where:
        async with open_stores(
            where.database_url, where.redis_url, key_prefix=settings.key_prefix, connections=1
        ) as stores:
            found = await recorded(stores.pool, event_id)
            if not found:
                found = await _accepted(stores.transit, list(settings.sources), event_id)
    if as_json:
        show.say_json([asdict(delivery) | {"attempt": attempts} for delivery, attempts in found])
    for delivery, attempts in () if as_json else found:
        _print(delivery, attempts)
    if not found and not as_json:
        show.say(f"no event is called {event_id}")
    return 0 if found else 1


async def recorded(pool: AsyncConnectionPool, event_id: str) -> list[tuple[Traced, list[TracedAttempt]]]:
    found: list[tuple[Traced, list[TracedAttempt]]] = []
    source, _, rest = event_id.partition(":")
    async with borrow(pool) as connection:
        async with connection.cursor(row_factory=class_row(Traced)) as cursor:
            await cursor.execute(
                statement("trace/deliveries"), {"event_id": event_id, "source": source, "rest": rest}
            )
            deliveries = await cursor.fetchall()
        for delivery in deliveries:
            async with connection.cursor(row_factory=class_row(TracedAttempt)) as cursor:
                await cursor.execute(
                    statement("trace/attempts"),
                    {
                        "source": delivery.source,
                        "event_id": delivery.event_id,
                        "partner": delivery.partner,
                    },
                )
                found.append((delivery, await cursor.fetchall()))
    return found


async def _accepted(
    transit: Transit, sources: Sequence[str], event_id: str
) -> list[tuple[Traced, list[TracedAttempt]]]:
    """What Redis alone knows: accepted with `durability = "redis"`, and not yet routed."""
    first, _, rest = event_id.partition(":")
    ids = [(source, event_id) for source in sources] + ([(first, rest)] if first in sources else [])
    return [
        (Traced(source, name, trace_id, known_to="redis"), [])
        for source, name in ids
        if (trace_id := await inbound.seen(transit, source, name)) is not None
    ]


def _print(delivery: Traced, attempts: list[TracedAttempt]) -> None:
    to = "" if delivery.partner is None else f" → {delivery.partner}"
    show.say(f"{delivery.source}:{delivery.event_id}{to}: {delivery.status}", style="bold")
    facts = [
        ("type", delivery.event_type),
        ("amount", show.amount(delivery.amount_minor, delivery.currency)),
        ("business date", str(delivery.business_date or "")),
        ("batch", "" if delivery.batch_id is None else f"{delivery.batch_id}, row {delivery.row_number}"),
        ("accepted", show.moment(delivery.created_at)),
        ("trace id", delivery.trace_id),
        ("known", "to Redis alone, for a router to come" if delivery.known_to == "redis" else ""),
        ("address", delivery.target_uri),
        ("body", "made by a route" if delivery.reshaped else ""),
        ("no route", delivery.reason or ""),
        ("came again with another body", f"{delivery.conflicts} times" if delivery.conflicts else ""),
        ("next attempt", show.moment(delivery.due_at)),
        ("why", " ".join(filter(None, (delivery.cause, delivery.last_error)))),
        ("may have been sent twice", "yes" if delivery.possible_duplicate else ""),
    ]
    for name, value in facts:
        if value:
            show.say(f"  {name}: {value}")
    rows = [
        (
            str(a.number), show.moment(a.started_at), a.outcome + (" (late)" if a.late else ""), a.reason,
            "" if a.status_code is None else str(a.status_code), f"{a.elapsed_ms} ms", a.excerpt,
        )
        for a in attempts
    ]  # fmt: skip
    if rows:
        show.table("", ("attempt", "slot", "outcome", "reason", "status", "took", "answer"), rows, left=7)
