"""Claims a run, keeps it while it lasts, and writes down how it ended.

The ledger is `business_day_run`: one row per job and business date, so two schedulers, or a scheduler and
somebody by hand, never run one date at the same time. A claim is a lease by PostgreSQL's clock. A process
that is killed stops renewing it, and whoever comes after its end goes on.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from enum import StrEnum
from threading import Event, Thread
from traceback import format_exception

import psycopg

from pipelines.job import Job
from sinks.statement import statement
from streams.errors import MadeiraError, StoreUnavailable

log = logging.getLogger(__name__)

LEASE = timedelta(seconds=20)
RENEW_EVERY = timedelta(seconds=5)

Connect = Callable[[], AbstractContextManager[psycopg.Connection]]
"""Opens a connection to the record for the length of a `with`."""


class RunState(StrEnum):
    """`business_day_run.state`."""

    CLAIMED = "claimed"
    DONE = "done"
    FAILED = "failed"


class End(StrEnum):
    """How a run ended. `LATER` is neither: something was not there, and the run is tried again by itself."""

    DONE = "done"
    FAILED = "failed"
    LATER = "later"


@dataclass(frozen=True, slots=True)
class Ran:
    """What the function that runs a job says when it returns. `detail` is a sentence for people."""

    end: End
    detail: str = ""


Run = Callable[[Job, date], Ran]


@dataclass(frozen=True, slots=True)
class Claim:
    """A run that is ours until its lease ends. `attempt` counts the claims of this date from 1."""

    job: str
    business_date: date
    owner: str
    attempt: int


@dataclass(frozen=True, slots=True)
class Taken:
    """A run that cannot be claimed: it is done, has failed, or somebody else is at it."""

    job: str
    business_date: date
    state: RunState
    holder: str
    lease_until: datetime
    detail: str


@dataclass(frozen=True, slots=True)
class Fired:
    """A run that was claimed and has come to an end."""

    job: str
    business_date: date
    attempt: int
    end: End
    detail: str


def claim(
    connection: psycopg.Connection,
    *,
    job: str,
    business_date: date,
    owner: str,
    due_at: datetime,
    by_hand: bool,
    lease: timedelta = LEASE,
) -> Claim | Taken:
    """Take a run, or say who has it. A failed one is taken only by hand, a done one never.

    A claim that is not by hand also moves the job's mark past that date. Commits.
    """
    key = {"job": job, "business_date": business_date}
    with connection.transaction():
        row = connection.execute(
            statement("schedule/claim"),
            {**key, "owner": owner, "lease": lease, "due_at": due_at, "by_hand": by_hand},
        ).fetchone()
        if row is not None:
            if not by_hand:
                connection.execute(statement("schedule/advance"), key)
            return Claim(job=job, business_date=business_date, owner=owner, attempt=row[0])
        state, holder, lease_until, detail = connection.execute(
            statement("schedule/read"), key
        ).fetchone() or (RunState.CLAIMED, "", due_at, "")
    return Taken(
        job=job,
        business_date=business_date,
        state=RunState(state),
        holder=holder,
        lease_until=lease_until,
        detail=detail,
    )


def renew(connection: psycopg.Connection, claimed: Claim, *, lease: timedelta = LEASE) -> bool:
    """Lengthen the lease from now. False: the claim is somebody else's by now, or has ended. Commits."""
    return _change(connection, "schedule/renew", claimed, lease=lease)


def finish(connection: psycopg.Connection, claimed: Claim, ran: Ran) -> bool:
    """Write the end down; `LATER` only gives the claim up. False: it was no longer ours. Commits."""
    if ran.end is End.LATER:
        return _change(connection, "schedule/later", claimed, detail=ran.detail)
    return _change(connection, "schedule/finish", claimed, state=ran.end.value, detail=ran.detail)


def fire(
    connect: Connect,
    *,
    job: Job,
    business_date: date,
    owner: str,
    due_at: datetime,
    run: Run,
    by_hand: bool = False,
    renew_every: timedelta = RENEW_EVERY,
) -> Fired | Taken:
    """Claim a run, do it while its lease is kept, and finish it.

    An exception of `run` is an end too: a store that is away is LATER, anything else FAILED. Raises what
    `connect` and PostgreSQL raise; the lease then ends by itself and the run is taken up again.
    """
    with connect() as connection:
        claimed = claim(
            connection,
            job=job.id,
            business_date=business_date,
            owner=owner,
            due_at=due_at,
            by_hand=by_hand,
        )
    if isinstance(claimed, Taken):
        return claimed
    fields = {"job": job.id, "business_date": business_date.isoformat(), "attempt": claimed.attempt}
    log.info("run_claimed", extra={"fields": fields})
    with _kept(connect, claimed, every=renew_every):
        ran = _guarded(run, job, business_date)
    with connect() as connection:
        ours = finish(connection, claimed, ran)
    if not ours:
        ran = Ran(End.LATER, "another scheduler took this run over while it lasted")
    level = logging.INFO if ran.end is End.DONE else logging.WARNING
    log.log(level, "run_ended", extra={"fields": fields | {"end": ran.end.value, "detail": ran.detail}})
    return Fired(
        job=job.id, business_date=business_date, attempt=claimed.attempt, end=ran.end, detail=ran.detail
    )


def _change(connection: psycopg.Connection, name: str, claimed: Claim, **values: str | timedelta) -> bool:
    with connection.transaction():
        cursor = connection.execute(
            statement(name),
            {
                "job": claimed.job,
                "business_date": claimed.business_date,
                "owner": claimed.owner,
                "attempt": claimed.attempt,
                **values,
            },
        )
        return cursor.rowcount == 1


def _guarded(run: Run, job: Job, business_date: date) -> Ran:
    try:
        return run(job, business_date)
    except (StoreUnavailable, psycopg.OperationalError) as error:
        return Ran(End.LATER, _without_secret(str(error), job))
    except MadeiraError as error:
        return Ran(End.FAILED, _without_secret(str(error), job))
    except Exception as error:  # noqa: BLE001 - it is told, only not to whoever looks for owed runs
        # Whatever it is, the ledger must say that the run ended.
        trace = _without_secret("".join(format_exception(error)), job)
        fields = {"job": job.id, "business_date": business_date.isoformat(), "trace": trace}
        log.error("run_raised", extra={"fields": fields})  # noqa: TRY400 - it could show the DSN
        return Ran(End.FAILED, _without_secret(f"{type(error).__name__}: {error}", job))


def _without_secret(text: str, job: Job) -> str:
    text = text.strip().replace("\0", "")
    return text.replace(job.dsn, f"${job.dsn_env}") if job.dsn else text


@contextmanager
def _kept(connect: Connect, claimed: Claim, *, every: timedelta) -> Iterator[None]:
    """Renews the lease in a thread of its own: the run blocks this one for as long as it lasts."""
    over = Event()

    def keep() -> None:
        while not over.wait(every.total_seconds()):
            try:
                with connect() as connection:
                    ours = renew(connection, claimed)
            except (psycopg.Error, MadeiraError, OSError) as error:
                # The next beat tries again; three are missed before the lease ends.
                log.warning(
                    "run_lease_not_renewed", extra={"fields": {"job": claimed.job, "error": str(error)}}
                )
                continue
            if not ours:
                log.warning("run_lease_lost", extra={"fields": {"job": claimed.job, "owner": claimed.owner}})
                return

    thread = Thread(target=keep, name=f"lease-{claimed.job}", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
