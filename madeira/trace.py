"""`madeira trace`: one event's way, from the record: what it is, where it stands, every attempt."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from datetime import date, datetime

from psycopg.rows import class_row

from madeira import show
from madeira.settings import Settings
from madeira.wiring import servers
from madeira.worker import open_stores
from sinks.pool import borrow
from sinks.statement import statement


@dataclass(frozen=True, slots=True)
class Traced:
    """One event for one partner."""

    source: str
    event_id: str
    event_type: str
    trace_id: str
    created_at: datetime
    business_date: date | None
    amount_minor: int | None
    currency: str | None
    bytes: int
    partner: str
    status: str
    attempts: int
    possible_duplicate: bool
    due_at: datetime | None
    cause: str | None
    last_error: str | None
    batch_id: int | None
    row_number: int | None
    updated_at: datetime


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
    """Print one event's way; 1 if nobody knows the id."""
    found: list[tuple[Traced, list[TracedAttempt]]] = []
    with servers(settings) as where:
        async with (
            open_stores(
                where.database_url, where.redis_url, key_prefix=settings.key_prefix, connections=1
            ) as stores,
            borrow(stores.pool) as connection,
        ):
            async with connection.cursor(row_factory=class_row(Traced)) as cursor:
                source, _, rest = event_id.partition(":")
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
    if as_json:
        show.say_json([asdict(delivery) | {"attempt": attempts} for delivery, attempts in found])
    for delivery, attempts in () if as_json else found:
        _print(delivery, attempts)
    if not found and not as_json:
        show.say(f"no event is called {event_id}")
    return 0 if found else 1


def _print(delivery: Traced, attempts: list[TracedAttempt]) -> None:
    show.say(f"{delivery.source}:{delivery.event_id} → {delivery.partner}: {delivery.status}", style="bold")
    facts = [
        ("type", delivery.event_type),
        ("amount", show.amount(delivery.amount_minor, delivery.currency)),
        ("business date", str(delivery.business_date or "")),
        ("batch", "" if delivery.batch_id is None else f"{delivery.batch_id}, row {delivery.row_number}"),
        ("accepted", show.moment(delivery.created_at)),
        ("trace id", delivery.trace_id),
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
