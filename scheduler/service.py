"""Wakes when a job is due. APScheduler only wakes; the ledger says which business dates are owed.

Each `[[jobs]]` is one APScheduler job in a memory store; a new list of them is adopted while it runs. Its
trigger is our own calendar, since CronTrigger drops and doubles runs around a change of the clocks, and a beat
four times a minute, by which runs are resumed whose process was killed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime, timedelta
from threading import Event, Lock

import psycopg
from apscheduler.executors.pool import ThreadPoolExecutor
from apscheduler.schedulers.background import BackgroundScheduler
from apscheduler.triggers.base import BaseTrigger

from scheduler.calendar import business_day_of
from scheduler.due import due_dates
from scheduler.fire import Connect, End, Fired, Run, RunState, Taken, fire
from scheduler.jobs import ScheduledJob, runs_after
from sinks.statement import statement
from streams.errors import ConfigurationError, MadeiraError

log = logging.getLogger(__name__)

BEAT = timedelta(seconds=15)
"""Longest time between two looks at the ledger."""

_MOST_AT_ONCE = 256
"""Jobs that run at the same time; a thread begins only when one does, so a high number costs nothing."""


class Scheduler:
    """The steps: which runs are owed, and running them.

    `now` gives the time in UTC; `owner` names this process.
    """

    def __init__(
        self,
        *,
        jobs: Sequence[ScheduledJob],
        connect: Connect,
        owner: str,
        run: Run,
        now: Callable[[], datetime],
    ) -> None:
        self.jobs = tuple(jobs)
        self.stopping = Event()
        """Once set, no further run begins; a run may look at it to end early."""
        self._connect = connect
        self._owner = owner
        self._run = run
        self._now = now

    def adopt(self, jobs: Sequence[ScheduledJob]) -> None:
        """Go by these jobs from now on. A run under way ends as it began; what it is followed by goes by these."""
        self.jobs = tuple(jobs)

    def owed(self, scheduled: ScheduledJob) -> tuple[date, ...]:
        """Business dates to run now, oldest first: those that are due and those whose holder died.

        None at or after one that is being run: a job's nights go one by one, over all schedulers.
        """
        job_id, schedule = scheduled.job.id, scheduled.schedule
        now = self._now()
        with self._connect() as connection, connection.transaction():
            connection.execute(
                statement("schedule/first_sight"),
                {"job": job_id, "today": business_day_of(now, schedule.timezone)},
            )
            row = connection.execute(statement("schedule/mark"), {"job": job_id}).fetchone()
            first = row[0] if row else None
            recorded = connection.execute(
                statement("schedule/recorded"), {"job": job_id, "first": first}
            ).fetchall()
            unfinished = connection.execute(statement("schedule/unfinished"), {"job": job_id}).fetchall()
        due = due_dates(schedule=schedule, recorded={row[0] for row in recorded}, first=first, now=now)
        owed = {*due, *(day for day, orphaned in unfinished if orphaned)}
        running = min((day for day, orphaned in unfinished if not orphaned), default=date.max)
        return tuple(sorted(day for day in owed if day < running))

    def run_due(self, job_id: str | None = None) -> list[Fired]:
        """Run everything that is owed, of one job or of all, one date after the other; returns what was run.

        A date that another scheduler is at, or that must wait, holds back the later ones of its job.
        """
        fired: list[Fired] = []
        for scheduled in self.jobs:
            if job_id in {None, scheduled.job.id}:
                fired += self._run_owed(scheduled)
        return fired

    def run_now(self, job_id: str, business_date: date) -> Fired | Taken:
        """Run a date by hand, due or not, failed or new. Raises ConfigurationError for an unknown job."""
        scheduled = next((each for each in self.jobs if each.job.id == job_id), None)
        if scheduled is None:
            raise ConfigurationError((f"no job is called {job_id}: see `madeira jobs`",))
        return self._fire(scheduled, business_date, by_hand=True)

    def _run_owed(self, scheduled: ScheduledJob) -> list[Fired]:
        fired: list[Fired] = []
        for business_date in self.owed(scheduled):
            if self.stopping.is_set() or scheduled not in self.jobs:
                break  # the next look goes by the job as it is now
            result = self._fire(scheduled, business_date, by_hand=False)
            if isinstance(result, Fired):
                fired.append(result)
                if result.end is End.LATER:
                    break
            elif result.state is RunState.CLAIMED:
                break
        return fired

    def _fire(self, scheduled: ScheduledJob, business_date: date, *, by_hand: bool) -> Fired | Taken:
        return fire(
            self._connect,
            job=scheduled.job,
            business_date=business_date,
            owner=self._owner,
            due_at=scheduled.schedule.fires_at(business_date),
            run=self._run,
            by_hand=by_hand,
        )


class Service:
    """Repeats a `Scheduler`'s steps in threads of its own: at start, at each fire time, at each beat."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._looked: dict[str, datetime] = {}
        self._running: set[str] = set()
        self._lock = Lock()
        quiet = logging.getLogger(f"{__name__}.apscheduler")
        # It warns at each beat that a run lasts longer than a beat, which is no fault.
        quiet.setLevel(logging.ERROR)
        self._apscheduler = BackgroundScheduler(
            timezone=UTC,
            logger=quiet,
            executors={"default": ThreadPoolExecutor(max(_MOST_AT_ONCE, len(scheduler.jobs)))},
        )
        for scheduled in scheduler.jobs:
            self._wake(scheduled)

    def start(self) -> None:
        """Begin to wake; returns at once."""
        started = datetime.now(UTC)
        self._looked = {scheduled.job.id: started for scheduled in self._scheduler.jobs}
        self._apscheduler.start()

    def adopt(self, jobs: Sequence[ScheduledJob]) -> None:
        """Go by these jobs from now on: new and changed ones are looked at once, removed ones no more."""
        before = {scheduled.job.id: scheduled for scheduled in self._scheduler.jobs}
        after = {scheduled.job.id: scheduled for scheduled in jobs}
        added = [job_id for job_id in after if job_id not in before]
        removed = [job_id for job_id in before if job_id not in after]
        changed = [job_id for job_id in after if job_id in before and after[job_id] != before[job_id]]
        if not (added or removed or changed):
            return
        # First the steps, so that a look that comes between knows the job as it is now.
        self._scheduler.adopt(jobs)
        with self._lock:
            for job_id in removed:
                self._looked.pop(job_id, None)
            for job_id in added:
                self._looked[job_id] = datetime.now(UTC)
        for job_id in removed:
            self._apscheduler.remove_job(job_id)
        for job_id in added:
            self._wake(after[job_id])
        for job_id in changed:
            self._apscheduler.reschedule_job(job_id, trigger=Wake(after[job_id]))
        fields = {"added": added, "removed": removed, "changed": changed}
        log.info("schedule_changed", extra={"fields": fields})

    def stop(self, *, wait: bool = True) -> None:
        """No further run begins; with `wait`, returns when the one that is running has ended."""
        self._scheduler.stopping.set()
        if self._apscheduler.running:
            self._apscheduler.shutdown(wait=wait)

    def stuck(self, now: datetime, *, after: timedelta = 3 * BEAT) -> tuple[str, ...]:
        """Jobs that nobody looked at for too long though they are not running: leave, and start anew."""
        with self._lock:
            return tuple(
                job_id
                for job_id, looked in self._looked.items()
                if job_id not in self._running and now - looked > after
            )

    def _wake(self, scheduled: ScheduledJob) -> None:
        self._apscheduler.add_job(
            self._look,
            Wake(scheduled),
            args=[scheduled.job.id],
            id=scheduled.job.id,
            coalesce=True,
            misfire_grace_time=None,
            max_instances=1,
        )

    def _look(self, job_id: str) -> None:
        with self._lock:
            self._running.add(job_id)
        try:
            self._scheduler.run_due(job_id)
        except (MadeiraError, psycopg.Error, OSError) as error:
            log.warning("schedule_not_looked_at", extra={"fields": {"job": job_id, "error": str(error)}})
        finally:
            with self._lock:
                self._running.discard(job_id)
                if job_id in self._looked:  # else it was removed while it ran, and nobody looks at it again
                    self._looked[job_id] = datetime.now(UTC)


class Wake(BaseTrigger):  # type: ignore[misc] # APScheduler ships no types
    """The job's next fire time by our calendar, or a beat from now, whichever is first; at once at first."""

    def __init__(self, scheduled: ScheduledJob) -> None:
        self._scheduled = scheduled

    def get_next_fire_time(self, previous_fire_time: datetime | None, now: datetime) -> datetime:
        """APScheduler's question; the answer is always after `now` except the first."""
        if previous_fire_time is None:
            return now
        return min(next(runs_after(self._scheduled, now)).utc, now + BEAT)
