"""When a job runs: its start, its zone, its calendar, and what comes next."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from heapq import merge
from itertools import islice
from zoneinfo import ZoneInfo

from pipelines.job import Job
from scheduler.calendar import Calendar, business_day_of, fire_time, next_business_date


@dataclass(frozen=True, slots=True)
class Schedule:
    """`start` is a local time of `timezone`, without a zone of its own."""

    start: time
    timezone: ZoneInfo
    calendar: Calendar = Calendar.ALL

    def fires_at(self, business_date: date) -> datetime:
        """The moment in UTC at which that date's run is due."""
        return fire_time(business_date, self.start, self.timezone)


@dataclass(frozen=True, slots=True)
class ScheduledJob:
    """One `[[jobs]]` of jobs.toml: what it does and when."""

    job: Job
    schedule: Schedule


@dataclass(frozen=True, slots=True)
class NextRun:
    """A run that is to come. `local` and `utc` are the same moment."""

    job: str
    business_date: date
    local: datetime
    utc: datetime


def runs_after(scheduled: ScheduledJob, now: datetime) -> Iterator[NextRun]:
    """Every run of one job whose fire time is after `now`, without an end, in order."""
    schedule = scheduled.schedule
    day = business_day_of(now, schedule.timezone)
    while True:
        day = next_business_date(schedule.calendar, day)
        utc = schedule.fires_at(day)
        if utc > now:
            yield NextRun(
                job=scheduled.job.id, business_date=day, local=utc.astimezone(schedule.timezone), utc=utc
            )
        day += timedelta(days=1)


def upcoming(jobs: Sequence[ScheduledJob], now: datetime, count: int) -> tuple[NextRun, ...]:
    """The next `count` runs over all jobs, soonest first."""
    return tuple(islice(merge(*(runs_after(job, now) for job in jobs), key=lambda run: run.utc), count))
