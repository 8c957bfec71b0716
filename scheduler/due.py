"""Which business dates a job owes. Pure: the ledger and the clock come in as arguments."""

from __future__ import annotations

from collections.abc import Collection
from datetime import date, datetime, timedelta

from scheduler.calendar import business_day_of, is_business_date
from scheduler.jobs import Schedule

_DAY = timedelta(days=1)


def due_dates(
    *, schedule: Schedule, recorded: Collection[date], first: date | None, now: datetime
) -> tuple[date, ...]:
    """Business dates whose fire time has passed and that nobody has claimed yet, oldest first.

    `first` is the earliest date that the scheduler still answers for: the one after the last that it fired.
    Dates before it are never due, so neither a run by hand for last year nor a changed calendar brings the
    past back. None is a job that was never seen: it starts with today, never with the past. `recorded` are
    dates that have a run already, whoever started it.
    """
    today = business_day_of(now, schedule.timezone)
    day = today if first is None else first
    due = []
    while day <= today:
        if is_business_date(schedule.calendar, day) and day not in recorded and schedule.fires_at(day) <= now:
            due.append(day)
        day += _DAY
    return tuple(due)
