"""The scheduler's steps and its service, on a real ledger."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, date, datetime, time, timedelta
from threading import Event
from zoneinfo import ZoneInfo

import psycopg
import pytest

from pipelines.job import Job
from scheduler.calendar import Calendar
from scheduler.fire import End, Fired, Ran, Run, RunState, Taken, claim
from scheduler.jobs import Schedule, ScheduledJob
from scheduler.service import BEAT, Scheduler, Service, Wake
from streams.errors import ConfigurationError

MONDAY = date(2026, 3, 9)
JOB = ScheduledJob(
    job=Job(
        id="payment-orders", dsn="", query="SELECT 1 AS id", query_file="q.sql", event_id=("id",), partner="AB",
        partner_is_column=False, amount=None, currency=None, currency_is_column=False, event_type="payment",
        order_key=None, partners=frozenset({"AB"}),
    ),
    schedule=Schedule(start=time(1, 15), timezone=ZoneInfo("Europe/Prague"), calendar=Calendar.WEEKDAYS),
)  # fmt: skip


class Night:
    """One job's schedulers over some days: a clock to turn, and the runs that happened."""

    def __init__(self, database_url: str) -> None:
        self.database_url = database_url
        self.now = datetime(2026, 3, 9, 0, 15, tzinfo=UTC)
        self.ran: list[tuple[str, date]] = []
        self.end = Ran(End.DONE)

    def scheduler(self, owner: str, run: Run | None = None) -> Scheduler:
        """A scheduler process."""

        def note(job: Job, business_date: date) -> Ran:
            self.ran.append((owner, business_date))
            return self.end

        return Scheduler(
            jobs=(JOB,),
            connect=lambda: psycopg.connect(self.database_url),
            owner=owner,
            run=run or note,
            now=lambda: self.now,
        )


@pytest.fixture
def night(database_url: str) -> Night:
    """Monday, a quarter past one in Prague."""
    return Night(database_url)


def dies(job: Job, business_date: date) -> Ran:
    """A run whose process is killed: nothing after it happens."""
    raise SystemExit


def test_two_schedulers_fire_once(night: Night) -> None:
    """Whoever comes second finds nothing owed."""
    one, two = night.scheduler("one"), night.scheduler("two")
    assert [fired.business_date for fired in one.run_due()] == [MONDAY]
    assert two.run_due() == []
    assert one.run_due() == []
    assert night.ran == [("one", MONDAY)]


def test_missed_nights_are_caught_up_one_by_one(night: Night) -> None:
    """Away from Tuesday to the Monday after: five nights, oldest first, no weekend."""
    night.scheduler("one").run_due()
    night.now += timedelta(days=7)
    caught_up = night.scheduler("two").run_due()
    assert [fired.business_date.day for fired in caught_up] == [10, 11, 12, 13, 16]


def test_a_night_missed_right_after_the_first_look_is_caught_up(night: Night) -> None:
    """A job seen before its start, by a scheduler that then was away, still owes that first night."""
    night.now -= timedelta(minutes=1)
    assert night.scheduler("one").run_due() == []
    night.now += timedelta(days=1)
    assert [fired.business_date.day for fired in night.scheduler("one").run_due()] == [9]


def test_a_new_job_does_not_run_the_past(night: Night) -> None:
    """Its first look is its beginning, also beside a run by hand for an older date."""
    assert isinstance(night.scheduler("hand").run_now(JOB.job.id, date(2026, 1, 5)), Fired)
    assert [fired.business_date for fired in night.scheduler("one").run_due()] == [MONDAY]


def test_a_run_by_hand_ahead_of_time_hides_no_night(night: Night) -> None:
    """Tomorrow's date was run today; today's is still owed, tomorrow's no more."""
    night.scheduler("hand").run_now(JOB.job.id, date(2026, 3, 10))
    one = night.scheduler("one")
    assert [fired.business_date.day for fired in one.run_due()] == [9]
    night.now += timedelta(days=1)
    assert one.run_due() == []


def test_a_killed_run_is_resumed_by_whoever_comes_after_its_lease(night: Night) -> None:
    """Not before; and what comes after it waits for it."""
    with pytest.raises(SystemExit):
        night.scheduler("one", dies).run_due()
    night.now += timedelta(days=1)
    two = night.scheduler("two")
    assert two.run_due() == []
    with psycopg.connect(night.database_url) as connection:
        connection.execute("UPDATE business_day_run SET lease_until = now() - interval '1 second'")
    resumed = two.run_due()
    assert [(fired.business_date.day, fired.attempt) for fired in resumed] == [(9, 2), (10, 1)]


def test_a_killed_run_by_hand_is_resumed_too(night: Night) -> None:
    """Though its date is none that the scheduler would ever have fired."""
    past = date(2026, 1, 5)
    with pytest.raises(SystemExit):
        night.scheduler("hand", dies).run_now(JOB.job.id, past)
    with psycopg.connect(night.database_url) as connection:
        connection.execute("UPDATE business_day_run SET lease_until = now() - interval '1 second'")
    assert [fired.business_date for fired in night.scheduler("one").run_due()] == [past, MONDAY]


def test_a_run_that_failed_waits_for_a_hand_and_holds_nothing_back(night: Night) -> None:
    """The next night goes on; the failed one runs again only when somebody says so."""
    one = night.scheduler("one")
    night.end = Ran(End.FAILED, "offenders")
    one.run_due()
    night.now += timedelta(days=1)
    night.end = Ran(End.DONE)
    assert [fired.business_date.day for fired in one.run_due()] == [10]
    again = one.run_now(JOB.job.id, MONDAY)
    assert isinstance(again, Fired)
    assert (again.attempt, again.end) == (2, End.DONE)
    done = one.run_now(JOB.job.id, MONDAY)
    assert isinstance(done, Taken)
    assert done.state is RunState.DONE


def test_a_source_that_is_away_is_tried_again_and_holds_back_the_later_nights(night: Night) -> None:
    """One by one means in order, too."""
    one = night.scheduler("one")
    one.owed(JOB)
    night.now += timedelta(days=1)
    night.end = Ran(End.LATER, "accounting does not answer")
    assert [(fired.business_date.day, fired.end) for fired in one.run_due()] == [(9, End.LATER)]
    night.end = Ran(End.DONE)
    assert [(fired.business_date.day, fired.end) for fired in one.run_due()] == [
        (9, End.DONE),
        (10, End.DONE),
    ]


def test_a_stopping_scheduler_begins_no_further_run(night: Night) -> None:
    """The night that is running ends, the next stays owed."""
    one = night.scheduler("one")
    one.owed(JOB)
    night.now += timedelta(days=1)

    def stopped_meanwhile(job: Job, business_date: date) -> Ran:
        stopping.stopping.set()
        return Ran(End.DONE)

    stopping = night.scheduler("two", stopped_meanwhile)
    assert [fired.business_date.day for fired in stopping.run_due()] == [9]
    assert [day.day for day in one.owed(JOB)] == [10]


def test_an_unknown_job_is_said(night: Night) -> None:
    """Not run, and where to look."""
    with pytest.raises(ConfigurationError, match="madeira jobs"):
        night.scheduler("one").run_now("payment-order", MONDAY)


def test_the_service_looks_at_once_and_waits_for_its_run_to_end(night: Night) -> None:
    """What is owed at the start runs without waiting for a fire time; stop returns after the run."""
    begun, may_end = Event(), Event()
    ended = []

    def run(job: Job, business_date: date) -> Ran:
        begun.set()
        assert may_end.wait(30)
        ended.append(business_date)
        return Ran(End.DONE)

    scheduler = night.scheduler("one", run)
    service = Service(scheduler)
    service.start()
    assert begun.wait(30)
    assert service.stuck(datetime.now(UTC) + timedelta(hours=1)) == ()
    may_end.set()
    service.stop()
    assert ended == [MONDAY]
    assert service.stuck(datetime.now(UTC) + timedelta(hours=1)) == (JOB.job.id,)


def test_a_new_list_of_jobs_is_gone_by_from_the_next_look(night: Night) -> None:
    """A job that is new begins, one that is gone is owed no more, and an earlier start is due at once."""
    one = night.scheduler("one")
    later = replace(JOB, schedule=replace(JOB.schedule, start=time(23, 0)))
    one.adopt((later,))
    assert one.run_due() == []
    refunds = replace(JOB, job=replace(JOB.job, id="refunds"))
    one.adopt((refunds,))
    assert [(fired.job, fired.business_date) for fired in one.run_due()] == [("refunds", MONDAY)]
    one.adopt((JOB, refunds))
    assert [fired.job for fired in one.run_due()] == [JOB.job.id]


def test_nights_that_are_caught_up_go_by_the_job_as_it_is_by_then(night: Night) -> None:
    """The run under way ends as it began; the next ones are those of the changed job, and of none that is gone."""
    night.scheduler("one").owed(JOB)
    night.now += timedelta(days=3)
    changed = replace(JOB, job=replace(JOB.job, query="SELECT 2 AS id"))
    queries = []

    def run(job: Job, business_date: date) -> Ran:
        queries.append(job.query)
        if len(queries) == 1:
            two.adopt((changed,))
        elif len(queries) == 3:
            two.adopt(())
        return Ran(End.DONE)

    two = night.scheduler("two", run)
    assert len(two.run_due()) == 1
    assert len(two.run_due()) == 2
    assert two.run_due() == []
    assert queries == ["SELECT 1 AS id", "SELECT 2 AS id", "SELECT 2 AS id"]


def test_a_running_service_takes_jobs_that_come_and_leaves_those_that_go(night: Night) -> None:
    """What is new or changed is looked at without a restart; a run of a removed job ends and is missed by nobody."""
    ran: dict[str, Event] = {"SELECT 1": Event(), "SELECT 2": Event(), "SELECT 3": Event()}
    may_end, ended = Event(), Event()

    def run(job: Job, business_date: date) -> Ran:
        ran[job.query].set()
        if job.query == "SELECT 1":
            assert may_end.wait(30)
            ended.set()
        return Ran(End.DONE)

    def job(job_id: str, query: str, *, start: time = JOB.schedule.start) -> ScheduledJob:
        return ScheduledJob(
            job=replace(JOB.job, id=job_id, query=query), schedule=replace(JOB.schedule, start=start)
        )

    first, not_yet = job("first", "SELECT 1"), job("second", "SELECT 2", start=time(23, 0))
    scheduler = Scheduler(
        jobs=(first, not_yet), connect=lambda: psycopg.connect(night.database_url), owner="one", run=run,
        now=lambda: night.now,
    )  # fmt: skip
    service = Service(scheduler)
    service.start()
    try:
        assert ran["SELECT 1"].wait(30)
        service.adopt((job("second", "SELECT 2"), job("third", "SELECT 3")))
        assert ran["SELECT 2"].wait(30)
        assert ran["SELECT 3"].wait(30)
        assert not ended.is_set()
        may_end.set()
    finally:
        may_end.set()
        service.stop()
    assert ended.is_set()
    assert set(service.stuck(datetime.now(UTC) + timedelta(hours=1))) == {"second", "third"}


def test_the_service_wakes_at_each_fire_time_and_at_beats_between() -> None:
    """Over the night on which half past two does not exist, too; each wake lies after the one before."""
    spring = replace(JOB, schedule=replace(JOB.schedule, start=time(2, 30), calendar=Calendar.ALL))
    wake = Wake(spring)
    moment = datetime(2026, 3, 29, 0, 59, 40, tzinfo=UTC)
    assert wake.get_next_fire_time(None, moment) == moment
    wakes = [moment]
    for _ in range(4):
        wakes.append(wake.get_next_fire_time(wakes[-1], wakes[-1]))
    fires = datetime(2026, 3, 29, 1, 0, tzinfo=UTC)
    assert wakes[1:] == [moment + BEAT, fires, fires + BEAT, fires + 2 * BEAT]


def test_a_record_that_is_away_is_looked_for_again(night: Night) -> None:
    """The look fails without taking the service down, and nothing was claimed."""
    looked = Event()

    def away() -> psycopg.Connection:
        looked.set()
        raise psycopg.OperationalError("no answer")

    scheduler = Scheduler(
        jobs=(JOB,), connect=away, owner="one", run=lambda job, day: Ran(End.DONE), now=lambda: night.now
    )
    service = Service(scheduler)
    service.start()
    assert looked.wait(30)
    service.stop()
    assert claim_is_free(night.database_url)


def claim_is_free(database_url: str) -> bool:
    """Whether Monday's run is still to be had."""
    with psycopg.connect(database_url) as connection:
        return not isinstance(
            claim(
                connection, job=JOB.job.id, business_date=MONDAY, owner="x",
                due_at=datetime.now(UTC), by_hand=False,
            ),
            Taken,
        )  # fmt: skip
