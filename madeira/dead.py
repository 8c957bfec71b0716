"""`madeira dead` and `madeira cancel`: what came to nothing or shall not go, and what operators do about it."""

from __future__ import annotations

import asyncio
import sys
from base64 import b64encode
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path

import msgspec
from psycopg.rows import class_row

from madeira import show
from madeira.settings import Settings
from madeira.trace import Traced, TracedAttempt, recorded
from madeira.wiring import servers
from madeira.worker import Stores, open_stores
from pipelines import dead_letters
from pipelines.cancel import Cancel, Cancelled
from pipelines.dead_letters import DeadLetter, Filter, Sums
from pipelines.record import Recorder
from pipelines.replay import Replay, Replayed
from sinks.partner import Partner
from sinks.pool import borrow
from sinks.statement import statement
from sinks.webhook import preview
from streams.delivery import State
from streams.envelope import Envelope, Lane

Confirm = Callable[[str], bool]
"""Asks the person at the keyboard; False: no."""

_SECRET = "(made or filled in when it is sent)"  # noqa: S105 - says that one is not shown
_SIGNATURES = frozenset({"madeira-signature", "madeira-timestamp", "webhook-signature", "webhook-timestamp"})


@dataclass(frozen=True, slots=True)
class Letter:
    """One delivery with its bytes, as it would be sent now."""

    source: str
    event_id: str
    partner: str
    status: str
    cause: str | None
    last_error: str | None
    attempts: int
    attempts_before: int
    possible_duplicate: bool
    event_type: str
    tenant: str
    routing_key: str
    target_uri: str
    content_type: str
    body: bytes
    reshaped: bool
    body_sha256: str
    trace_id: str
    created_at: datetime
    updated_at: datetime
    replayed_at: datetime | None
    cleared_at: datetime | None
    business_date: date | None
    amount_minor: int | None
    currency: str | None
    order_key: str | None
    tags: dict[str, str] | None
    schema_version: int
    loaded_by_batch: int | None
    batch_id: int | None
    row_number: int | None


@dataclass(frozen=True, slots=True)
class AuditRow:
    """What an operator did."""

    at: datetime
    who: str
    action: str
    why: str
    detail: str | None


@asynccontextmanager
async def _stores(settings: Settings) -> AsyncIterator[Stores]:
    with servers(settings) as where:
        async with open_stores(
            where.database_url, where.redis_url, key_prefix=settings.key_prefix, connections=3
        ) as stores:
            yield stores


async def list_dead(settings: Settings, which: Filter, *, by: str, limit: int, as_json: bool) -> int:
    """Print groups and the first `limit` dead letters, and how many more there are; 1 if there is any.

    However many are printed, they are never all in memory.
    """
    async with _stores(settings) as stores:
        groups = await dead_letters.groups(stores.pool, which, by=by)
        total = sum(group.count for group in groups)
        letters = dead_letters.letters(stores.pool, which, limit=limit)
        if as_json:
            await _stream({"total": total, "by": by, "groups": groups}, "letters", letters)
            return int(total > 0)
        if not total:
            show.say("no dead letters")
            return 0
        show.table(
            "",
            (by, "oldest", "sum", "count"),
            [
                (each.name, show.moment(each.oldest), _sum(each.minor, each.currency), each.count)
                for each in groups
            ],
            left=2,
        )
        shown = 0
        async for rows in _pages(letters):
            shown += len(rows)
            show.table(
                "",
                ("event", "partner", "cause", "why", "accepted", "attempts", "amount"),
                [
                    (
                        f"{row.source}:{row.event_id}", row.partner, row.cause, row.last_error,
                        show.moment(row.created_at), row.attempts, show.amount(row.amount_minor, row.currency),
                    )
                    for row in rows
                ],
                left=5,
            )  # fmt: skip
        if total > shown:
            show.say(f"{total - shown:,} more: --limit {total}")
    return 1


async def _pages(letters: AsyncIterator[DeadLetter], rows: int = 500) -> AsyncIterator[list[DeadLetter]]:
    page: list[DeadLetter] = []
    async for letter in letters:
        page.append(letter)
        if len(page) == rows:
            yield page
            page = []
    if page:
        yield page


async def _stream(head: dict[str, object], name: str, items: AsyncIterator[object]) -> None:
    """One JSON object on one line whose last member is a list that is never in memory as a whole."""
    start = msgspec.json.encode(head, enc_hook=str).decode()
    sys.stdout.write(f'{start[:-1]},"{name}":[')
    comma = ""
    async for item in items:
        sys.stdout.write(comma + msgspec.json.encode(item, enc_hook=str).decode())
        comma = ","
    sys.stdout.write("]}\n")
    sys.stdout.flush()


async def show_dead(settings: Settings, key: str, *, partner: str | None, as_json: bool) -> int:
    """Print all that is known of one event's deliveries, their bytes included; 1 if there is none."""
    source, _, event_id = key.partition(":")
    found: list[tuple[Letter, list[TracedAttempt], list[AuditRow]]] = []
    async with _stores(settings) as stores:
        traced = await recorded(stores.pool, key)
        async with borrow(stores.pool) as connection:
            async with connection.cursor(row_factory=class_row(Letter)) as cursor:
                await cursor.execute(
                    statement("dead/letter"), {"source": source, "event_id": event_id, "partner": partner}
                )
                letters = await cursor.fetchall()
            for letter in letters:
                async with connection.cursor(row_factory=class_row(AuditRow)) as cursor:
                    await cursor.execute(
                        statement("dead/audits"),
                        {"source": source, "event_id": event_id, "partner": letter.partner},
                    )
                    found.append((letter, _attempts(traced, letter), await cursor.fetchall()))
        facts = [
            {
                **{name: value for name, value in asdict(letter).items() if name != "body"},
                **_body(letter.body),
                "headers": _headers(settings.partners.get(letter.partner), letter),
                "attempt": attempts,
                "audit": audits,
            }
            for letter, attempts, audits in found
        ]
    if as_json:
        show.say_json(facts)
    else:
        for (letter, attempts, audits), fact in zip(found, facts, strict=True):
            _print_letter(letter, attempts, audits, fact)
    if not facts and not as_json:
        show.say(f"no delivery is called {key}" + (f" for {partner}" if partner else ""))
    return int(not facts)


def _attempts(traced: Sequence[tuple[Traced, list[TracedAttempt]]], letter: Letter) -> list[TracedAttempt]:
    return next((attempts for delivery, attempts in traced if delivery.partner == letter.partner), [])


def _body(body: bytes) -> dict[str, str]:
    try:
        return {"body": body.decode()}
    except UnicodeDecodeError:
        return {"body_base64": b64encode(body).decode()}


def _headers(partner: Partner | None, letter: Letter) -> list[tuple[str, str]]:
    """What would be sent with it, without what is secret or made at the send; none for a partner that is gone."""
    if partner is None:
        return []
    envelope = Envelope(
        event_id=letter.event_id,
        event_type=letter.event_type,
        source=letter.source,
        partner=letter.partner,
        payload=letter.body,
        trace_id=letter.trace_id,
        created_at=letter.created_at,
        updated_at=letter.updated_at,
        lane=Lane.LIVE if letter.batch_id is None else Lane.BATCH,
        content_type=letter.content_type,
        target_uri=letter.target_uri,
        status=State(letter.status),
    )
    request = preview(partner, envelope, attempt=letter.attempts + 1)
    first, *lines = request.partition(b"\r\n\r\n")[0].decode("ascii").split("\r\n")
    hidden = _SIGNATURES | {name.lower() for name, _ in partner.headers}
    pairs = [tuple(line.split(": ", 1)) for line in lines]
    return [("", first), *((name, _SECRET if name.lower() in hidden else value) for name, value in pairs)]


def _print_letter(
    letter: Letter, attempts: Sequence[TracedAttempt], audits: Sequence[AuditRow], fact: dict[str, object]
) -> None:
    show.say(f"{letter.source}:{letter.event_id} → {letter.partner}: {letter.status}", style="bold")
    batch = "" if letter.batch_id is None else f"{letter.batch_id}, row {letter.row_number}"
    facts = [
        ("cause", " ".join(filter(None, (letter.cause, letter.last_error)))),
        ("type", letter.event_type),
        ("amount", show.amount(letter.amount_minor, letter.currency)),
        ("business date", str(letter.business_date or "")),
        ("accepted", show.moment(letter.created_at)),
        ("since", show.moment(letter.updated_at)),
        ("replayed", show.moment(letter.replayed_at)),
        ("known not to have arrived until", show.moment(letter.cleared_at)),
        ("batch", batch),
        ("loaded by batch", "" if letter.loaded_by_batch is None else str(letter.loaded_by_batch)),
        ("trace id", letter.trace_id),
        ("may have been sent twice", "yes" if letter.possible_duplicate else ""),
    ]
    for name, value in facts:
        if value:
            show.say(f"  {name}: {value}")
    headers = _as_pairs(fact["headers"])
    show.say("  request:" if headers else "  request: jobs.toml has no partner of that name")
    for name, value in headers:
        show.say(f"    {name}: {value}" if name else f"    {value}")
    show.say(f"    {len(letter.body):,} bytes, sha256 {letter.body_sha256}")
    show.say(f"    {fact.get('body', fact.get('body_base64'))}")
    if attempts:
        show.table(
            "",
            ("attempt", "slot", "outcome", "reason", "may have arrived", "status", "answer"),
            [
                (
                    str(a.number), show.moment(a.started_at), a.outcome + (" (late)" if a.late else ""), a.reason,
                    "yes" if a.may_have_arrived else "",
                    "" if a.status_code is None else str(a.status_code), a.excerpt,
                )
                for a in attempts
            ],
            left=7,
        )  # fmt: skip
    if audits:
        show.table(
            "",
            ("when", "who", "did", "why"),
            [(show.moment(a.at), a.who, a.action, a.why) for a in audits],
            left=4,
        )


def _as_pairs(headers: object) -> list[tuple[str, str]]:
    return msgspec.convert(headers, list[tuple[str, str]])


async def replay_dead(
    settings: Settings,
    which: Filter,
    *,
    who: str,
    why: str,
    current_route: bool,
    dry_run: bool,
    as_json: bool,
    confirm: Confirm,
) -> int:
    """Say what would go again, ask, and do it; 1 if something was left out or the answer was no."""
    async with _stores(settings) as stores:
        replay = Replay(stores.pool, settings.partners, settings.routes)

        async def run(*, dry: bool) -> Replayed:
            return await replay.replay(
                which,
                today=datetime.now(UTC).date(),
                who=who,
                why=why,
                current_route=current_route,
                dry_run=dry,
            )

        planned = await run(dry=True)
        left_out = any(each.left_out for each in planned.sums)
        if not as_json:
            _print_sums(planned.sums, "go again")
        if dry_run or not planned.count:
            if as_json:
                show.say_json({"dry_run": dry_run, "count": planned.count, "sums": planned.sums})
            return int(left_out)
        if not confirm(f"send {planned.count:,} again?"):
            show.say("nothing was done")
            return 1
        done = await run(dry=False)
    if as_json:
        show.say_json(
            {"dry_run": False, "count": done.count, "batch_id": done.batch_id, "revision": done.revision,
             "sums": done.sums}
        )  # fmt: skip
    elif done.batch_id is None:
        show.say("nothing was left to be sent: somebody else was faster", style="yellow")
    else:
        show.say(f"{done.count:,} go again as batch {done.batch_id} (replay r{done.revision})", style="green")
    return int(any(each.left_out for each in done.sums))


async def cancel_deliveries(
    settings: Settings,
    which: Filter,
    *,
    dead: bool,
    who: str,
    why: str,
    dry_run: bool,
    as_json: bool,
    patience: timedelta,
    confirm: Confirm,
) -> int:
    """Say what would be cancelled, ask, do it and wait for what is under way; 1 if not all of it is cancelled."""
    async with _stores(settings) as stores:
        cancel = Cancel(stores.pool, stores.transit, settings.partners)
        planned = await cancel.cancel(which, dead=dead, who=who, why=why, dry_run=True)
        if not as_json:
            _print_sums(planned.sums, "be cancelled")
        if dry_run or not planned.count:
            if as_json:
                show.say_json({"dry_run": dry_run, "count": planned.count, "sums": planned.sums})
            return int(any(each.left_out for each in planned.sums))
        if not confirm(f"cancel {planned.count:,}?"):
            show.say("nothing was done")
            return 1
        done = await cancel.cancel(which, dead=dead, who=who, why=why)
        if done.audit is not None:
            recorder = Recorder(stores.pool, stores.transit, settings.partners)
            done = await cancel.settled(done, recorder, patience=patience, wait=asyncio.sleep)
    if as_json:
        show.say_json({"dry_run": False, **asdict(done)})
    else:
        _print_cancelled(done)
    return int(bool(done.left or done.became or any(each.left_out for each in done.sums)))


def _print_cancelled(done: Cancelled) -> None:
    for partner, count in done.left:
        show.say(
            f"{partner}: {count:,} are still in a worker's hand; none is sent again: dead show says how it ended",
            style="yellow",
        )
    after_all = [each for each in done.became if each.status == State.SUCCEEDED]
    doubtful = [each for each in done.became if each.status != State.SUCCEEDED]
    for title, some in (
        ("delivered after all", after_all),
        ("may have arrived: ask the partner, then dead resolve", doubtful),
    ):
        if some:
            show.table(
                title,
                ("event", "partner", "why", "amount"),
                [
                    (each.key, each.partner, each.last_error, show.amount(each.amount_minor, each.currency))
                    for each in some
                ],
                left=3,
            )
    cancelled = done.count - len(done.became)
    show.say(f"{cancelled:,} are cancelled", style="green")


async def resolve_dead(
    settings: Settings, key: str, *, partner: str | None, delivered: bool, who: str, note: str
) -> int:
    """Settle by hand what may have arrived; 1 where no such delivery is dead."""
    async with _stores(settings) as stores:
        partners = await dead_letters.resolve(
            stores.pool, Filter(key=key, partner=partner), delivered=delivered, who=who, note=note
        )
    for name in partners:
        show.say(
            f"{key} → {name}: delivered"
            if delivered
            else f"{key} → {name}: not delivered; dead replay --event {key} sends it again"
        )
    if not partners:
        show.say(f"no delivery of {key} is dead and may have arrived: nothing was done")
    return int(not partners)


def export_dead(settings: Settings, which: Filter, path: Path) -> int:
    """Write dead letters to a file."""
    from pipelines.export import Format, export  # pandas: half a second that no other command needs

    with servers(settings) as where:
        count = export(where.database_url, which, path, Format(path.suffix.removeprefix(".")))
    show.say(f"{count:,} dead letters are in {path}")
    return 0


def _sum(minor: Decimal | None, currency: str | None) -> str:
    return show.amount(None if minor is None else int(minor), currency)


def _print_sums(found: Sequence[Sums], what: str) -> None:
    if not found:
        show.say("there is none")
        return
    show.table(
        "",
        ("partner", "cause", f"would {what}", "sum", "count"),
        [
            (each.partner, each.cause, f"no: {each.left_out}" if each.left_out else "yes",
             _sum(each.minor, each.currency), each.count)
            for each in found
        ],
        left=3,
    )  # fmt: skip
    totals: dict[str | None, tuple[int, Decimal]] = {}
    for each in found:
        if not each.left_out:
            count, minor = totals.get(each.currency, (0, Decimal(0)))
            totals[each.currency] = (count + each.count, minor + (each.minor or 0))
    for currency, (count, minor) in totals.items():
        amount = f", {_sum(minor, currency)}" if currency else ""
        show.say(f"{count:,} would {what}{amount}")
