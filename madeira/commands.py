"""What each command does, as functions: settings and arguments in, an exit code out, words on stdout."""

from __future__ import annotations

import os
import secrets
import socket
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict
from datetime import UTC, date, datetime

import psycopg

from madeira import show
from madeira.check import check as look
from madeira.settings import Settings
from madeira.wiring import servers
from madeira.worker import Stores, open_stores
from pipelines.batch import BatchResult, BatchState, plan, run_batch
from pipelines.control import Control
from pipelines.job import Job
from pipelines.manifest import Line
from pipelines.recover import read_generation
from pipelines.stage import Offender
from scheduler.fire import Connect, End, Fired, Ran, RunState
from scheduler.jobs import upcoming
from scheduler.service import Scheduler
from sinks.migrate import migrate as run_migrations
from streams import gauges
from streams.errors import BatchRefused, StaleGeneration, StoreUnavailable

# -- batches ---------------------------------------------------------------------------------------------


def owner() -> str:
    """Who holds a lease: host, process, and something that no earlier process of that number had."""
    return f"{socket.gethostname()}/{os.getpid()}/{secrets.token_hex(4)}"


def connector(database_url: str) -> Connect:
    """Opens connections to the record for the scheduler."""

    def connect() -> AbstractContextManager[psycopg.Connection]:
        return psycopg.connect(
            database_url, autocommit=True, connect_timeout=5, application_name="madeira-schedule"
        )

    return connect


def scheduler_for(settings: Settings, database_url: str, *, now: Callable[[], datetime]) -> Scheduler:
    """The scheduler's steps, running batches into the record at `database_url`."""
    me = owner()

    def run(job: Job, business_date: date) -> Ran:
        result = run_batch(job=job, business_date=business_date, record=database_url, owner=me, now=now)
        return _ran(result)

    return Scheduler(jobs=settings.jobs, connect=connector(database_url), owner=me, run=run, now=now)


def _ran(result: BatchResult) -> Ran:
    if result.running_by is not None:
        return Ran(End.LATER, f"{result.running_by} is running this batch")
    if result.state is BatchState.FAILED:
        return Ran(End.FAILED, "; ".join([*result.reasons, *_offenders(result)][:3]))
    return Ran(End.DONE, _sentence(result))


def _offenders(result: BatchResult) -> list[str]:
    if not result.offender_count:
        return []
    shown = [f"row {one.row} ({one.event_id or 'no id'}): {one.reason}" for one in result.offenders]
    return [f"{result.offender_count:,} rows cannot become events", *shown]


def _sentence(result: BatchResult) -> str:
    already = f", {result.already_known:,} already known" if result.already_known else ""
    return f"batch {result.batch_id}: {result.loaded_count:,} rows released{already}"


def batch_run(settings: Settings, job_id: str, day: date, *, as_json: bool) -> int:
    """Run one batch by hand, by the same ledger as the scheduler. 0 released, 1 failed or somebody else is at it."""
    job = settings.job(job_id).job
    me = owner()
    results: list[BatchResult] = []
    with servers(settings) as where:

        def run(_: Job, business_date: date) -> Ran:
            results.append(
                run_batch(job=job, business_date=business_date, record=where.database_url, owner=me, now=_now)
            )
            return _ran(results[-1])

        by_hand = Scheduler(
            jobs=settings.jobs, connect=connector(where.database_url), owner=me, run=run, now=_now
        )
        fired = by_hand.run_now(job_id, day)
        if isinstance(fired, Fired) and not results:
            if fired.end is End.LATER:
                raise StoreUnavailable(fired.detail)
            raise BatchRefused(f"{job_id} for {day}: {fired.detail}")
        if not isinstance(fired, Fired) and fired.state is RunState.CLAIMED:
            raise BatchRefused(
                f"{job_id} for {day} is being run by {fired.holder} (until {show.moment(fired.lease_until)} "
                "unless renewed): nothing was done"
            )
        if not results:
            run(job, day)  # done before: this only reads what is there, and says so
    result = results[-1]
    if as_json:
        show.say_json(_batch_facts(result))
    else:
        _print_batch(result)
    return 0 if result.state is BatchState.RELEASED else 1


def batch_plan(settings: Settings, job_id: str, day: date, *, as_json: bool) -> int:
    """Say what a run would load. 0 it would be released, 1 it would be refused."""
    job = settings.job(job_id).job
    with servers(settings) as where:
        planned = plan(job=job, business_date=day, record=where.database_url, now=_now)
    refused = bool(planned.offenders.count or planned.reasons)
    if as_json:
        show.say_json(
            {"job": job_id, "business_date": day, "would_release": not refused, "lines": planned.lines,
             "offender_count": planned.offenders.count, "offenders": planned.offenders.first,
             "reasons": planned.reasons}
        )  # fmt: skip
        return int(refused)
    show.say(f"plan of {job_id} for {day}: nothing is written")
    _print_lines(planned.lines)
    for reason in planned.reasons:
        show.say(f"would be refused: {reason}", style="red")
    if planned.offenders.count:
        show.say(f"{planned.offenders.count:,} rows cannot become events:", style="red")
        _print_offenders(planned.offenders.first)
    return int(refused)


def _batch_facts(result: BatchResult) -> dict[str, object]:
    return {
        "job": result.job,
        "business_date": result.business_date,
        "batch_id": result.batch_id,
        "state": result.state,
        "did_nothing": result.did_nothing,
        "expected": result.expected_count,
        "loaded": result.loaded_count,
        "already_known": result.already_known,
        "ids_sha256": result.ids_sha256,
        "lines": result.lines,
        "reasons": result.reasons,
        "offender_count": result.offender_count,
        "offenders": result.offenders,
    }


def _print_batch(result: BatchResult) -> None:
    name = f"{result.job} for {result.business_date}"
    if result.state is BatchState.RELEASED and result.did_nothing:
        show.say(f"{name} was released before as batch {result.batch_id}: nothing was done", style="yellow")
    elif result.state is BatchState.RELEASED:
        show.say(f"{name}: {_sentence(result)}", style="green")
    elif result.running_by is not None:
        show.say(f"{name} is being run by {result.running_by}: nothing was done", style="yellow")
    else:
        show.say(f"{name} failed; nothing was sent", style="bold red")
        for reason in result.reasons:
            show.say(f"  {reason}")
        if result.offender_count:
            show.say(f"  {result.offender_count:,} rows cannot become events; the first of them:")
            _print_offenders(result.offenders)
        show.say("  mend the source and run it again")
    _print_lines(result.lines)


def _print_offenders(offenders: Sequence[Offender]) -> None:
    show.table(
        "", ("row", "event id", "reason"), [(str(o.row), o.event_id, o.reason) for o in offenders], left=3
    )


def _print_lines(lines: Sequence[Line]) -> None:
    if not lines:
        return
    rows = [
        (
            line.partner,
            line.expected.count,
            show.amount(line.expected.minor, line.currency or None),
            line.already_known.count,
            line.loaded.count,
            show.amount(line.loaded.minor, line.currency or None),
        )
        for line in lines
    ]
    for currency in sorted({line.currency for line in lines}):
        own = [line for line in lines if line.currency == currency]
        rows.append(
            (
                "TOTAL",
                sum(line.expected.count for line in own),
                show.amount(sum(line.expected.minor for line in own), currency or None),
                sum(line.already_known.count for line in own),
                sum(line.loaded.count for line in own),
                show.amount(sum(line.loaded.minor for line in own), currency or None),
            )
        )
    show.table("", ("partner", "source", "amount", "already known", "loaded", "amount"), rows)


# -- looking ---------------------------------------------------------------------------------------------


def check(settings: Settings, *, offline: bool, as_json: bool) -> int:
    """Look at the configuration and the servers. 0 no error, 2 errors."""
    if offline:
        report = look(settings, database_url=None, redis_url=None)
    else:
        with servers(settings, check_schema=False) as where:
            report = look(settings, database_url=where.database_url, redis_url=where.redis_url)
    if as_json:
        show.say_json({"ok": not report.errors, **asdict(report)})
    else:
        for fact in report.facts:
            show.say(f"  {fact}")
        for warning in report.warnings:
            show.say(f"warning: {warning}", style="yellow")
        for error in report.errors:
            show.say(f"error: {error}", style="red")
        show.say("ok" if not report.errors else f"{len(report.errors)} errors", style="bold")
    return 2 if report.errors else 0


def migrate(settings: Settings) -> int:
    """Run the missing migrations."""
    with servers(settings, check_schema=False) as where:
        show.say(f"the database is at schema {run_migrations(where.database_url)}")
    return 0


def jobs(settings: Settings, *, count: int, as_json: bool) -> int:
    """List the next runs of every job."""
    runs = upcoming(settings.jobs, _now(), count * max(1, len(settings.jobs)))
    if as_json:
        show.say_json(runs)
    else:
        rows = [
            (
                run.job,
                str(run.business_date),
                show.moment(run.local),
                str(run.local.tzinfo),
                show.moment(run.utc),
            )
            for run in runs
        ]
        show.table("", ("job", "business date", "local time", "zone", "UTC"), rows, left=5)
    return 0


# -- operators -------------------------------------------------------------------------------------------


async def set_paused(
    settings: Settings, name: str | None, *, paused: bool, who: str, why: str, dry_run: bool
) -> int:
    """Pause or resume one partner or all: recorded first, then done in Redis, now and after every restart."""
    names = list(settings.partners) if name is None else [settings.partner(name).name]
    verb = "paused" if paused else "resumed"
    with servers(settings) as where:
        async with open_stores(
            where.database_url, where.redis_url, key_prefix=settings.key_prefix, connections=2
        ) as stores:
            if dry_run:
                waiting = await _waiting(settings, stores, names)
                show.say(f"{', '.join(names)} would be {verb}: {waiting:,} deliveries are in Redis for them")
                return 0
            control = Control(stores.pool, stores.transit, settings.partners)
            await control.set_paused(names, paused=paused, who=who, why=why)
            try:
                await control.apply((await read_generation(stores.pool)).number)
                waiting = await _waiting(settings, stores, names)
            except (StaleGeneration, StoreUnavailable) as error:
                follows = (
                    "a worker sets it in Redis before anything is sent"
                    if isinstance(error, StaleGeneration)
                    else "Redis follows as soon as it is there"
                )
                show.say(f"{verb} {', '.join(names)}: recorded; {follows}", style="yellow")
                return 0
            show.say(f"{verb} {', '.join(names)}: {waiting:,} deliveries are in Redis for them")
    return 0


async def _waiting(settings: Settings, stores: Stores, names: Sequence[str]) -> int:
    waiting = 0
    for name in names:
        keys = stores.transit.keys.partner(name, settings.partners[name].tenant)
        gauge = await gauges.gauge(stores.transit, keys)
        waiting += gauge.batch + gauge.live
    return waiting


def _now() -> datetime:
    return datetime.now(UTC)
