"""The list of runs that are to come."""

from __future__ import annotations

from datetime import UTC, date, datetime, time
from zoneinfo import ZoneInfo

from pipelines.job import Job
from scheduler.calendar import Calendar
from scheduler.jobs import Schedule, ScheduledJob, upcoming


def job(name: str, start: time, zone: str, calendar: Calendar) -> ScheduledJob:
    """A job of which only the times matter."""
    return ScheduledJob(
        job=Job(
            id=name, dsn="", query="SELECT 1 AS id", query_file="q.sql", event_id=("id",), partner="AB",
            partner_is_column=False, amount=None, currency=None, currency_is_column=False, event_type=name,
            order_key=None, partners=frozenset({"AB"}),
        ),
        schedule=Schedule(start=start, timezone=ZoneInfo(zone), calendar=calendar),
    )  # fmt: skip


def test_runs_of_all_jobs_come_in_the_order_of_their_moments() -> None:
    """Local time and UTC are both told and are the same moment; a run at this very moment is not to come."""
    prague = job("prague", time(1, 15), "Europe/Prague", Calendar.WEEKDAYS)
    tokyo = job("tokyo", time(8, 0), "Asia/Tokyo", Calendar.ALL)
    now = datetime(2026, 3, 6, 0, 15, tzinfo=UTC)  # Friday 01:15 in Prague
    runs = upcoming((prague, tokyo), now, 5)
    assert [(run.job, run.business_date, run.utc.isoformat()) for run in runs] == [
        ("tokyo", date(2026, 3, 7), "2026-03-06T23:00:00+00:00"),
        ("tokyo", date(2026, 3, 8), "2026-03-07T23:00:00+00:00"),
        ("tokyo", date(2026, 3, 9), "2026-03-08T23:00:00+00:00"),
        ("prague", date(2026, 3, 9), "2026-03-09T00:15:00+00:00"),
        ("tokyo", date(2026, 3, 10), "2026-03-09T23:00:00+00:00"),
    ]
    assert all(run.local == run.utc and run.local.time() in {time(1, 15), time(8, 0)} for run in runs)


def test_no_jobs_no_runs() -> None:
    """An empty file lists nothing."""
    assert upcoming((), datetime(2026, 3, 6, tzinfo=UTC), 5) == ()
