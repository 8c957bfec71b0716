"""Claims, leases and ends, in a real PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from threading import Barrier, Thread

import psycopg
import pytest

from pipelines.job import Job
from scheduler.fire import Claim, End, Fired, Ran, Run, RunState, Taken, claim, finish, fire, renew
from streams.errors import BatchRefused, StoreUnavailable

DAY = date(2026, 3, 9)
DUE = datetime(2026, 3, 9, 0, 15, tzinfo=UTC)
OVER = timedelta(seconds=-1)
"""A lease that has ended already, so that no test waits for one."""

JOB = Job(
    id="payment-orders", dsn="postgresql://u:hunter2@nowhere/x", query="SELECT 1 AS id", query_file="q.sql",
    event_id=("id",), partner="AB", partner_is_column=False, amount=None, currency=None,
    currency_is_column=False, event_type="payment", order_key=None, partners=frozenset({"AB"}),
    dsn_env="ACCOUNTING_DSN",
)  # fmt: skip


@pytest.fixture
def connection(database_url: str) -> Iterator[psycopg.Connection]:
    """A connection to this test's record."""
    with psycopg.connect(database_url) as connection:
        yield connection


def take(
    connection: psycopg.Connection, owner: str, *, by_hand: bool = False, lease: timedelta | None = None
) -> Claim | Taken:
    """Claim the one run that these tests are about."""
    return claim(
        connection,
        job=JOB.id,
        business_date=DAY,
        owner=owner,
        due_at=DUE,
        by_hand=by_hand,
        lease=lease or timedelta(seconds=60),
    )


def taken(connection: psycopg.Connection, owner: str, *, lease: timedelta | None = None) -> Claim:
    """A claim that must succeed."""
    claimed = take(connection, owner, lease=lease)
    assert isinstance(claimed, Claim)
    return claimed


def test_a_run_is_claimed_once(connection: psycopg.Connection) -> None:
    """The second is told who has it."""
    taken(connection, "one")
    second = take(connection, "two")
    assert isinstance(second, Taken)
    assert (second.state, second.holder) == (RunState.CLAIMED, "one")


def test_of_many_at_the_same_moment_one_wins(database_url: str) -> None:
    """Eight schedulers that wake together fire once."""
    together, results = Barrier(8), list[Claim | Taken]()

    def wake(number: int) -> None:
        with psycopg.connect(database_url) as connection:
            together.wait()
            results.append(take(connection, f"scheduler-{number}"))

    threads = [Thread(target=wake, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 8
    assert sum(isinstance(result, Claim) for result in results) == 1


def test_a_dead_holders_run_is_taken_over_and_is_lost_to_it(connection: psycopg.Connection) -> None:
    """Once the lease is over another takes the run; the first can neither renew nor finish it then."""
    first = taken(connection, "one", lease=OVER)
    second = taken(connection, "two")
    assert (first.attempt, second.attempt) == (1, 2)
    assert not renew(connection, first)
    assert not finish(connection, first, Ran(End.FAILED))
    assert finish(connection, second, Ran(End.DONE, "fine"))


def test_the_same_owner_again_does_not_revive_its_earlier_claim(connection: psycopg.Connection) -> None:
    """The attempt counts, not only the name."""
    first = taken(connection, "one", lease=OVER)
    taken(connection, "one")
    assert not renew(connection, first)


def test_a_renewed_lease_keeps_others_away(connection: psycopg.Connection) -> None:
    """Renewing lengthens from now."""
    claimed = taken(connection, "one", lease=OVER)
    assert renew(connection, claimed)
    assert isinstance(take(connection, "two"), Taken)


def test_done_is_never_claimed_again_and_failed_only_by_hand(connection: psycopg.Connection) -> None:
    """What failed waits for somebody who has looked at it."""
    assert finish(connection, taken(connection, "one"), Ran(End.FAILED, "3 offenders"))
    refused = take(connection, "two")
    assert isinstance(refused, Taken)
    assert (refused.state, refused.detail) == (RunState.FAILED, "3 offenders")
    by_hand = take(connection, "two", by_hand=True)
    assert isinstance(by_hand, Claim)
    assert finish(connection, by_hand, Ran(End.DONE))
    assert isinstance(take(connection, "three", by_hand=True), Taken)


def test_later_gives_the_run_up_at_once(connection: psycopg.Connection) -> None:
    """The next who looks goes on with it, without waiting for the lease."""
    assert finish(connection, taken(connection, "one"), Ran(End.LATER, "source away"))
    assert isinstance(take(connection, "two"), Claim)


def fired(database_url: str, run: Run) -> Fired:
    """Fire the one run; it must be ours."""
    result = fire(
        lambda: psycopg.connect(database_url),
        job=JOB, business_date=DAY, owner="one", due_at=DUE, run=run, renew_every=timedelta(milliseconds=1),
    )  # fmt: skip
    assert isinstance(result, Fired)
    return result


def raising(error: Exception) -> Run:
    """A run that ends with an exception."""

    def run(job: Job, business_date: date) -> Ran:
        raise error

    return run


@pytest.mark.parametrize(
    ("run", "end", "detail"),
    [
        (lambda job, day: Ran(End.DONE, f"{job.id} {day}"), End.DONE, "payment-orders 2026-03-09"),
        (raising(BatchRefused("2 offenders")), End.FAILED, "2 offenders"),
        (raising(StoreUnavailable("no answer")), End.LATER, "no answer"),
        (raising(psycopg.OperationalError("connection lost")), End.LATER, "connection lost"),
        (raising(ValueError(f"bad {JOB.dsn}\0")), End.FAILED, "ValueError: bad $ACCOUNTING_DSN"),
    ],
)
def test_every_end_of_a_run_is_written_down(
    database_url: str, connection: psycopg.Connection, run: Run, end: End, detail: str
) -> None:
    """Also an exception is an end; no secret gets into the ledger."""
    result = fired(database_url, run)
    assert (result.end, result.detail) == (end, detail)
    row = connection.execute("SELECT state, detail, ended_at IS NULL FROM business_day_run").fetchone()
    state = RunState.CLAIMED if end is End.LATER else RunState(end.value)
    assert row == (state.value, detail, end is End.LATER)


def test_the_lease_is_renewed_while_the_run_lasts(database_url: str) -> None:
    """The run sees its own lease move, which only the thread beside it can have done."""

    def run(job: Job, business_date: date) -> Ran:
        question = "SELECT lease_until FROM business_day_run"
        with psycopg.connect(database_url, autocommit=True) as connection:
            before = connection.execute(question).fetchone()
            while connection.execute(question).fetchone() == before:
                pass
        return Ran(End.DONE)

    assert fired(database_url, run).end is End.DONE


def test_a_run_that_was_taken_over_says_so(database_url: str, connection: psycopg.Connection) -> None:
    """Its end does not overwrite the one of the new holder."""

    def run(job: Job, business_date: date) -> Ran:
        with psycopg.connect(database_url) as other:
            other.execute("UPDATE business_day_run SET claimed_by = 'two', attempts = attempts + 1")
        return Ran(End.FAILED, "too late")

    result = fired(database_url, run)
    assert (result.end, "took this run over" in result.detail) == (End.LATER, True)
    assert connection.execute("SELECT state, claimed_by FROM business_day_run").fetchone() == (
        "claimed",
        "two",
    )


def test_a_run_of_another_job_is_another_run(database_url: str, connection: psycopg.Connection) -> None:
    """The row is per job and date."""
    taken(connection, "one")
    other = fire(
        lambda: psycopg.connect(database_url),
        job=replace(JOB, id="other"), business_date=DAY, owner="two", due_at=DUE,
        run=lambda job, day: Ran(End.DONE),
    )  # fmt: skip
    assert isinstance(other, Fired)
