"""`madeira status`: what happens now, partner by partner, and what needs somebody's attention."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta

from psycopg.rows import class_row
from psycopg_pool import AsyncConnectionPool

from madeira import show
from madeira.settings import Settings
from madeira.wiring import servers
from madeira.worker import Stores, open_stores
from sinks.pool import borrow
from sinks.statement import statement
from streams import gauges, inbound
from streams.gauges import Gauge
from streams.inbound import Depth
from streams.pace import from_us, to_ms
from streams.server import ServerFacts, server_facts

_NO_PROGRESS = timedelta(seconds=60)
_BEHIND = 5_000
_NEARLY_FULL = 0.95


@dataclass(frozen=True, slots=True)
class Recorded:
    """A partner's deliveries by PostgreSQL; `live` of them are live ones that are pending or retrying.

    `live_since` is when the oldest live one was accepted that has had no attempt.
    """

    partner: str
    pending: int
    retrying: int
    succeeded: int
    dead: int
    cancelled: int
    last_progress: datetime | None
    live: int = 0
    live_since: datetime | None = None


@dataclass(frozen=True, slots=True)
class BatchRow:
    """A batch, newest first."""

    id: int
    job: str
    business_date: date
    revision: int
    state: str
    loaded_count: int | None
    already_known: int | None
    lease_over: bool | None
    created_at: datetime
    released_at: datetime | None
    failure: object


@dataclass(frozen=True, slots=True)
class Store:
    """The record as a whole."""

    number: int
    state: str
    now: datetime
    workers: int
    silent: int
    quarantined: int
    inbound_quarantined: int = 0
    unroutable: int = 0
    unrouted_since: datetime | None = None
    """When the oldest event was accepted that waits for a router by the record."""
    conflicts: int = 0


@dataclass(frozen=True, slots=True)
class PartnerStatus:
    """One partner: its agreed rate, the record, and what is in Redis."""

    name: str
    qps: int
    recorded: Recorded
    gauge: Gauge
    paused: bool
    """By the record or by Redis, which follows it: an operator's intent counts from the moment it is recorded."""


@dataclass(frozen=True, slots=True)
class Status:
    """All of it, and the problems, one sentence each."""

    store: Store
    inbound: Depth
    partners: tuple[PartnerStatus, ...]
    batches: tuple[BatchRow, ...]
    problems: tuple[str, ...]


async def read_status(settings: Settings, stores: Stores) -> Status:
    """Look at both stores. Raises `StoreUnavailable`."""
    store, recorded, batches, intents = await _read_record(stores.pool)
    partners = []
    for partner in settings.partners.values():
        keys = stores.transit.keys.partner(partner.name, partner.tenant)
        row = recorded.get(partner.name, Recorded(partner.name, 0, 0, 0, 0, 0, None))
        gauge = await gauges.gauge(stores.transit, keys)
        paused = gauge.paused or intents.get(partner.name, False)
        partners.append(PartnerStatus(partner.name, partner.qps, row, gauge, paused))
    orphans = [
        f"{row.pending + row.retrying:,} deliveries wait for {row.partner}, which {settings.config} does not have"
        for row in recorded.values()
        if row.partner not in settings.partners and row.pending + row.retrying
    ]
    room = redis_problems(await server_facts(stores.transit.redis))
    depth = await inbound.depth(stores.transit)
    found = (*problems(store, partners, batches), *inbound_problems(store, depth), *orphans, *room)
    return Status(store, depth, tuple(partners), batches, found)


async def _read_record(
    pool: AsyncConnectionPool,
) -> tuple[Store, dict[str, Recorded], tuple[BatchRow, ...], dict[str, bool]]:
    async with borrow(pool) as connection:
        async with connection.cursor(row_factory=class_row(Store)) as cursor:
            store = await (await cursor.execute(statement("status/store"))).fetchone()
        async with connection.cursor(row_factory=class_row(Recorded)) as cursor:
            rows = await (await cursor.execute(statement("status/deliveries"))).fetchall()
        async with connection.cursor(row_factory=class_row(BatchRow)) as cursor:
            batches = await (await cursor.execute(statement("status/batches"))).fetchall()
        controls = await connection.execute(statement("worker/controls"))
        intents: dict[str, bool] = dict(await controls.fetchall())
    assert store is not None, "the migration inserts this row"
    return store, {row.partner: row for row in rows}, tuple(batches), intents


def problems(store: Store, partners: Sequence[PartnerStatus], batches: Sequence[BatchRow]) -> tuple[str, ...]:
    """What needs attention, by what was read; pure. Each says what to do where that is known."""
    found = []
    if store.state != "open":
        found.append(f"recovery is under way (generation {store.number}); workers do it by themselves")
    if store.quarantined:
        found.append(f"{store.quarantined:,} outcomes could not be recorded: see table outcome_quarantine")
    if store.silent:
        found.append(
            f"{store.silent} workers were not heard of for 15 s; what they had is taken over by others"
        )
    waiting = sum(each.recorded.pending + each.recorded.retrying for each in partners)
    if waiting and not store.workers:
        found.append(f"{waiting:,} deliveries wait and no worker is running: start `madeira work`")
    released = max((batch.released_at for batch in batches if batch.released_at), default=None)
    for each in partners:
        found += _partner_problems(each, store, released)
    for batch in batches:
        name = f"batch {batch.id} ({batch.job} for {batch.business_date})"
        if batch.state == "failed":
            found.append(
                f"{name} failed, nothing of it was sent{_why(batch.failure)}: mend that and run it again"
            )
        elif batch.state == "running" and batch.lease_over:
            found.append(
                f"{name} is stuck: whoever ran it is gone; a scheduler or `madeira batch run` goes on with it"
            )
    return tuple(found)


def inbound_problems(store: Store, depth: Depth) -> tuple[str, ...]:
    """What became of live events before they had a partner; pure."""
    found = []
    in_redis = None if depth.oldest_ms is None else from_us(depth.oldest_ms * 1000)
    oldest = [at for at in (store.unrouted_since, in_redis) if at is not None]
    if oldest and store.now - min(oldest) > _NO_PROGRESS:
        found.append(
            f"live events wait for a router since {show.moment(min(oldest))} ({depth.waiting:,} in Redis): "
            + ("look for store_away in a worker's log" if store.workers else "start `madeira work`")
        )
    if store.unroutable:
        found.append(
            f"{store.unroutable:,} live events found no partner, or not all: `madeira unroutable list` says why; "
            "mend the routes, then `madeira unroutable route`"
        )
    if store.conflicts:
        found.append(
            f"{store.conflicts:,} ids came again with another body, which was not sent: `madeira conflicts list`"
        )
    if store.inbound_quarantined:
        found.append(
            f"{store.inbound_quarantined:,} inbound entries could not be read: see table inbound_quarantine"
        )
    return tuple(found)


def redis_problems(facts: ServerFacts) -> tuple[str, ...]:
    """What Redis lacks for payments to go on; pure."""
    found = []
    if facts.memory_limit and facts.memory_used >= _NEARLY_FULL * facts.memory_limit:
        found.append(
            f"Redis is at its memory limit ({facts.memory_used:,} of {facts.memory_limit:,} bytes): what it has "
            "drains, nothing is fed; raise maxmemory"
        )
    if not facts.aof_healthy:
        found.append("Redis cannot write its append-only file and refuses everything: is its disk full?")
    return tuple(found)


def _why(failure: object) -> str:
    """A batch's failure in a few words, from what the loader wrote down."""
    match failure:
        case {"error": str(error)}:
            return f" ({error.splitlines()[0]})"
        case {"count": int(count), "offenders": [{"reason": str(reason)}, *_]}:
            return f" ({count:,} rows cannot become events, first: {reason})"
        case {"reasons": [str(reason), *_]}:
            return f" ({reason})"
        case _:
            return ""


def _partner_problems(each: PartnerStatus, store: Store, released: datetime | None) -> list[str]:
    found = []
    backlog = each.recorded.pending + each.recorded.retrying
    if each.paused:
        found.append(
            f"{each.name} is paused with {backlog:,} deliveries waiting: `madeira resume {each.name}`"
        )
    elif each.gauge.broken is not None:
        broken = each.gauge.broken
        probe = (
            "a probe is under way"
            if broken.probing
            else f"next probe {show.moment(from_us(broken.probe_us))}"
        )
        found.append(
            f"{each.name} is down since {show.moment(from_us(broken.since_us))} ({broken.reason}), {backlog:,} "
            f"deliveries wait and lose no attempt, {probe}: ask the partner; it goes on by itself once a probe is "
            "answered"
        )
    elif each.gauge.paused_until_us > store.now.timestamp() * 1_000_000:
        pass  # it asked for this pause itself
    elif each.recorded.pending and store.workers:
        # A batch that came after the last outcome has its minute, too; one that never had an outcome only that.
        known = (each.recorded.last_progress, released, each.recorded.live_since)
        since = max((at for at in known if at), default=None)
        if since is not None and store.now - since > _NO_PROGRESS:
            unrecorded = (
                f"; {each.gauge.unrecorded:,} outcomes wait in Redis, so it is the recorder: look for store_away"
                if each.gauge.unrecorded
                else ""
            )
            found.append(
                f"{each.name} has {backlog:,} deliveries and no progress since {show.moment(since)}{unrecorded}"
            )
    if each.gauge.unrecorded > _BEHIND:
        found.append(f"the recorder is {each.gauge.unrecorded:,} outcomes behind for {each.name}")
    now_ms = to_ms(store.now)
    late = [
        d for d in each.gauge.delays if now_ms - d.head_due_ms > _NO_PROGRESS // timedelta(milliseconds=1)
    ]
    if late and not each.paused:
        found.append(f"{each.name} has retries that are due and not released")
    return found


def _pace(each: PartnerStatus, now: datetime) -> str:
    """One word or two: why a partner is sent to, or is not."""
    if each.paused:
        return "paused"
    if each.gauge.broken is not None:
        return "down, probing"
    until = from_us(each.gauge.paused_until_us)
    return f"waits until {show.moment(until)}" if until > now else each.gauge.state


async def status_of(settings: Settings, *, as_json: bool) -> int:
    """Print the status; 1 if there is any problem."""
    with servers(settings) as where:
        async with open_stores(
            where.database_url, where.redis_url, key_prefix=settings.key_prefix, connections=2
        ) as stores:
            status = await read_status(settings, stores)
    if as_json:
        show.say_json(status)
        return int(bool(status.problems))
    rows = [
        (
            each.name, str(each.qps), each.recorded.pending, each.recorded.retrying, each.recorded.live,
            each.gauge.pending, each.recorded.succeeded, each.recorded.dead, each.recorded.cancelled,
            each.gauge.unrecorded,
            _pace(each, status.store.now),
        )
        for each in status.partners
    ]  # fmt: skip
    show.table(
        f"generation {status.store.number}, {status.store.workers} workers",
        (
            "partner",
            "qps",
            "pending",
            "retrying",
            "of it live",
            "in flight",
            "delivered",
            "dead",
            "cancelled",
            "unrecorded",
            "pace",
        ),
        rows,
    )
    if status.inbound.waiting:
        show.say(f"{status.inbound.waiting:,} live events wait for a router")
    for batch in status.batches[:5]:
        loaded = "" if batch.loaded_count is None else f", {batch.loaded_count:,} rows"
        show.say(f"batch {batch.id}: {batch.job} for {batch.business_date}, {batch.state}{loaded}")
    for problem in status.problems:
        show.say(f"! {problem}", style="red")
    if not status.problems:
        show.say("nothing needs attention", style="green")
    return int(bool(status.problems))
