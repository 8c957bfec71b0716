"""`madeira unroutable` and `madeira conflicts`: live events that go nowhere until somebody looks."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal

from psycopg.rows import class_row
from psycopg_pool import AsyncConnectionPool

from madeira import show
from madeira.settings import Settings
from madeira.wiring import servers
from madeira.worker import Stores, open_stores
from pipelines.router import Router
from sinks.pool import borrow
from sinks.statement import statement


@dataclass(frozen=True, slots=True)
class Group:
    """Unroutable events of one kind: how many, and their sum where they have amounts."""

    source: str
    event_type: str
    reason: str
    currency: str | None
    count: int
    minor: Decimal | None


@dataclass(frozen=True, slots=True)
class Unroutable:
    """One event that no route took, or one could not send."""

    source: str
    event_id: str
    event_type: str
    routing_key: str
    tenant: str
    trace_id: str
    accepted_at: datetime
    amount_minor: int | None
    currency: str | None
    reason: str


@dataclass(frozen=True, slots=True)
class Conflict:
    """An id that came again with another body, which was never sent."""

    id: int
    source: str
    event_id: str
    event_type: str
    tenant: str
    trace_id: str
    bytes: int
    at: datetime
    settled_at: datetime | None


@dataclass(frozen=True, slots=True)
class Both:
    """A conflict beside the event as it came first, which is the one that was sent."""

    id: int
    source: str
    event_id: str
    tenant: str
    event_type: str
    trace_id: str
    at: datetime
    settled_at: datetime | None
    body: bytes
    first_event_type: str | None
    first_trace_id: str | None
    first_at: datetime | None
    first_body: bytes | None


@asynccontextmanager
async def _stores(settings: Settings) -> AsyncIterator[Stores]:
    with servers(settings) as where:
        async with open_stores(
            where.database_url, where.redis_url, key_prefix=settings.key_prefix, connections=2
        ) as stores:
            yield stores


async def list_unroutable(settings: Settings, *, limit: int, as_json: bool) -> int:
    """Print the events that go nowhere, the oldest `limit` of them, and how many there are; 1 if there is any."""
    async with _stores(settings) as stores:
        groups = await _groups(stores.pool)
        async with (
            borrow(stores.pool) as connection,
            connection.cursor(row_factory=class_row(Unroutable)) as cursor,
        ):
            await cursor.execute(statement("unroutable/list"), {"limit": limit})
            rows = await cursor.fetchall()
    total = sum(group.count for group in groups)
    if as_json:
        show.say_json({"total": total, "groups": groups, "events": rows})
        return int(total > 0)
    _print_groups(groups)
    if rows:
        show.table(
            "",
            ("event", "type", "routing key", "accepted", "amount", "why"),
            [
                (
                    f"{row.source}:{row.event_id}", row.event_type, row.routing_key,
                    show.moment(row.accepted_at), show.amount(row.amount_minor, row.currency), row.reason,
                )
                for row in rows
            ],
            left=6,
        )  # fmt: skip
    if total > len(rows):
        show.say(f"{total - len(rows):,} more: --limit {total}")
    return int(total > 0)


async def route_again(settings: Settings, *, who: str, dry_run: bool, as_json: bool) -> int:
    """Route by today's jobs.toml what found no partner; 1 if any of it still finds none. An audit row is written.

    `dry_run` only says what would come of it.
    """
    async with _stores(settings) as stores:
        groups = await _groups(stores.pool)
        if not as_json:
            _print_groups(groups)
        router = Router(stores.pool, stores.transit, settings.partners, settings.routes)
        done = await router.again(who=who, dry_run=dry_run)
    routed = done.events - done.unroutable
    if as_json:
        show.say_json(
            {"dry_run": dry_run, "events": done.events, "routed": routed, "unroutable": done.unroutable}
        )
    elif done.events:
        verb = "would find" if dry_run else "found"
        show.say(
            f"{routed:,} of {done.events:,} events {verb} all their partners; {done.unroutable:,} do not"
        )
    return int(done.unroutable > 0)


async def list_conflicts(settings: Settings, *, every: bool, as_json: bool) -> int:
    """Print the conflicts that nobody has settled (`every`: all); 1 if one is not settled."""
    async with (
        _stores(settings) as stores,
        borrow(stores.pool) as connection,
        connection.cursor(row_factory=class_row(Conflict)) as cursor,
    ):
        await cursor.execute(statement("conflict/list"), {"all": every})
        rows = await cursor.fetchall()
    if as_json:
        show.say_json(rows)
    elif rows:
        show.table(
            "",
            ("id", "event", "type", "came again", "bytes", "settled"),
            [
                (
                    str(row.id), f"{row.source}:{row.event_id}", row.event_type, show.moment(row.at),
                    str(row.bytes), show.moment(row.settled_at),
                )
                for row in rows
            ],
            left=6,
        )  # fmt: skip
    else:
        show.say("no conflicts")
    return int(any(row.settled_at is None for row in rows))


async def show_conflict(settings: Settings, number: int, *, as_json: bool) -> int:
    """Print both bodies of a conflict, in JSON as base64; 1 if there is none of this number."""
    async with (
        _stores(settings) as stores,
        borrow(stores.pool) as connection,
        connection.cursor(row_factory=class_row(Both)) as cursor,
    ):
        await cursor.execute(statement("conflict/show"), {"id": number})
        both = await cursor.fetchone()
    if as_json:
        show.say_json(both)
    if both is None:
        if not as_json:
            show.say(f"there is no conflict {number}")
        return 1
    if not as_json:
        show.say(f"{both.source}:{both.event_id}", style="bold")
        first = "" if both.first_body is None else _readable(both.first_body)
        show.say(
            f"  first, {show.moment(both.first_at)}, {both.first_event_type}, trace id {both.first_trace_id}:"
        )
        show.say(f"    {first}")
        show.say(f"  again, {show.moment(both.at)}, {both.event_type}, trace id {both.trace_id}, never sent:")
        show.say(f"    {_readable(both.body)}")
    return 0


async def settle_conflict(settings: Settings, number: int, *, who: str, why: str) -> int:
    """Note that somebody has looked at a conflict, with an audit row; 1 if none of this number is open."""
    async with _stores(settings) as stores, borrow(stores.pool) as connection:
        cursor = await connection.execute(
            statement("conflict/settle"), {"id": number, "who": who, "why": why}
        )
        settled = cursor.rowcount == 1
    show.say(f"conflict {number} is settled" if settled else f"no conflict {number} is open")
    return int(not settled)


async def _groups(pool: AsyncConnectionPool) -> list[Group]:
    async with borrow(pool) as connection, connection.cursor(row_factory=class_row(Group)) as cursor:
        await cursor.execute(statement("unroutable/counts"))
        return await cursor.fetchall()


def _print_groups(groups: Sequence[Group]) -> None:
    if not groups:
        show.say("every event found its partners")
        return
    show.table(
        "",
        ("source", "type", "why", "sum", "events"),
        [
            (
                group.source, group.event_type, group.reason,
                show.amount(None if group.minor is None else int(group.minor), group.currency), group.count,
            )
            for group in groups
        ],
        left=4,
    )  # fmt: skip


def _readable(body: bytes) -> str:
    """The bytes as text where they are, cut for the screen; `--json` has all of them."""
    return body[:2000].decode("utf-8", "backslashreplace")
