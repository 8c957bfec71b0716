"""Which business dates are owed."""

from __future__ import annotations

from datetime import UTC, date, datetime, time, timedelta
from zoneinfo import ZoneInfo

from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.calendar import Calendar
from scheduler.due import due_dates
from scheduler.jobs import Schedule

NO_DEADLINE = settings(deadline=None)  # a busy machine is no fault
WEEKDAYS = Schedule(start=time(1, 15), timezone=ZoneInfo("Europe/Prague"), calendar=Calendar.WEEKDAYS)
THURSDAY = date(2026, 3, 5)
MONDAY = date(2026, 3, 9)


def local(day: date, hour: int, minute: int) -> datetime:
    """A moment on Prague's wall, in UTC."""
    return datetime.combine(day, time(hour, minute), ZoneInfo("Europe/Prague")).astimezone(UTC)


def test_a_new_job_starts_with_today_once_its_start_has_passed() -> None:
    """Never with the past, and not before its time."""
    before, after = local(MONDAY, 1, 14), local(MONDAY, 1, 15)
    assert due_dates(schedule=WEEKDAYS, recorded=(), first=None, now=before) == ()
    assert due_dates(schedule=WEEKDAYS, recorded=(), first=None, now=after) == (MONDAY,)


def test_a_new_job_on_a_saturday_owes_nothing() -> None:
    """No business date, no run."""
    saturday = local(date(2026, 3, 7), 12, 0)
    assert due_dates(schedule=WEEKDAYS, recorded=(), first=None, now=saturday) == ()


def test_missed_nights_are_owed_oldest_first_without_the_weekend() -> None:
    """A scheduler that was away from Thursday to Monday owes three nights, one by one."""
    owed = due_dates(schedule=WEEKDAYS, recorded=(), first=THURSDAY, now=local(MONDAY, 9, 0))
    assert owed == (THURSDAY, date(2026, 3, 6), MONDAY)


def test_a_date_that_somebody_ran_by_hand_is_not_owed() -> None:
    """The ledger's rows count, whoever wrote them; one for a future date hides nothing before it."""
    by_hand = {date(2026, 3, 6), date(2026, 3, 30)}
    owed = due_dates(schedule=WEEKDAYS, recorded=by_hand, first=THURSDAY, now=local(MONDAY, 9, 0))
    assert owed == (THURSDAY, MONDAY)


def test_nothing_before_the_mark_is_owed() -> None:
    """A run by hand for last year does not make every night since then due."""
    assert due_dates(
        schedule=WEEKDAYS, recorded={date(2025, 3, 3)}, first=MONDAY, now=local(MONDAY, 9, 0)
    ) == (MONDAY,)


@NO_DEADLINE
@given(steps=st.lists(st.integers(0, 5000), min_size=1, max_size=40))
def test_however_often_one_looks_each_business_date_runs_exactly_once(steps: list[int]) -> None:
    """Looks at any moments, over both changes of the clocks: no date is left out and none comes twice."""
    schedule = Schedule(start=time(2, 30), timezone=ZoneInfo("Europe/Prague"), calendar=Calendar.WEEKDAYS)
    first = date(2026, 3, 23)
    now = local(first, 0, 0)
    ran: list[date] = []
    mark = first
    for minutes in steps:
        now += timedelta(minutes=minutes)
        for day in due_dates(schedule=schedule, recorded=ran, first=mark, now=now):
            ran.append(day)
            mark = day + timedelta(days=1)
    days = (now.date() - first).days + 2
    assert ran == [
        day
        for day in (first + timedelta(days=n) for n in range(days))
        if day.isoweekday() <= 5 and schedule.fires_at(day) <= now
    ]
