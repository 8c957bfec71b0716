"""Business days and fire times around changes of the clocks."""

from __future__ import annotations

from datetime import UTC, date, datetime, time, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.calendar import Calendar, business_day_of, fire_time, is_business_date, next_business_date

NO_DEADLINE = settings(deadline=None)  # a busy machine is no fault
ZONES = [
    ZoneInfo(name)
    for name in (
        "Europe/Prague", "America/New_York", "Africa/Cairo", "America/Santiago", "Australia/Sydney", "Asia/Beirut",
        "Australia/Lord_Howe", "Asia/Kathmandu", "America/Havana", "Pacific/Auckland", "UTC",
    )
]  # fmt: skip


@pytest.mark.parametrize(
    ("zone", "day", "start", "utc"),
    [
        ("Europe/Prague", date(2026, 1, 15), time(1, 15), "2026-01-15T00:15"),
        ("Europe/Prague", date(2026, 7, 15), time(1, 15), "2026-07-14T23:15"),
        # 02:00 to 03:00 does not exist: every start in it fires as the gap ends, at 03:00 summer time.
        ("Europe/Prague", date(2026, 3, 29), time(1, 59), "2026-03-29T00:59"),
        ("Europe/Prague", date(2026, 3, 29), time(2, 0), "2026-03-29T01:00"),
        ("Europe/Prague", date(2026, 3, 29), time(2, 30), "2026-03-29T01:00"),
        ("Europe/Prague", date(2026, 3, 29), time(3, 0), "2026-03-29T01:00"),
        # 02:30 comes twice: the first one counts.
        ("Europe/Prague", date(2026, 10, 25), time(2, 30), "2026-10-25T00:30"),
        # Santiago's day begins at 01:00.
        ("America/Santiago", date(2026, 9, 6), time(0, 0), "2026-09-06T04:00"),
        ("America/Santiago", date(2026, 9, 6), time(0, 45), "2026-09-06T04:00"),
        # Half an hour's change.
        ("Australia/Lord_Howe", date(2026, 10, 4), time(2, 15), "2026-10-03T15:30"),
    ],
)
def test_fire_time_follows_the_stated_rule(zone: str, day: date, start: time, utc: str) -> None:
    """A start in a gap fires when the gap ends, one that comes twice fires the first time."""
    assert fire_time(day, start, ZoneInfo(zone)) == datetime.fromisoformat(utc).replace(tzinfo=UTC)


@NO_DEADLINE
@given(
    zone=st.sampled_from(ZONES),
    day=st.dates(date(2000, 1, 1), date(2037, 12, 30)),
    minute=st.integers(0, 24 * 60 - 1),
)
def test_every_date_fires_once_and_in_order(zone: ZoneInfo, day: date, minute: int) -> None:
    """Each date has a later fire time than the one before, on the date itself, never before its start."""
    start = time(minute // 60, minute % 60)
    fires = fire_time(day, start, zone)
    assert fires < fire_time(day + timedelta(days=1), start, zone)
    local = fires.astimezone(zone)
    assert local.date() == day
    assert local.time() >= start
    a_second_before = (fires - timedelta(seconds=1)).astimezone(zone).replace(tzinfo=None)
    assert a_second_before < datetime.combine(day, start)


def test_weekdays_are_monday_to_friday() -> None:
    """Saturday and Sunday are left out; `all` leaves out nothing."""
    week = [date(2026, 3, 2) + timedelta(days=n) for n in range(7)]
    assert [is_business_date(Calendar.WEEKDAYS, day) for day in week] == [True] * 5 + [False] * 2
    assert all(is_business_date(Calendar.ALL, day) for day in week)


def test_next_business_date_includes_the_day_itself() -> None:
    """A business date is its own next one; a Saturday's is Monday."""
    assert next_business_date(Calendar.WEEKDAYS, date(2026, 3, 6)) == date(2026, 3, 6)
    assert next_business_date(Calendar.WEEKDAYS, date(2026, 3, 7)) == date(2026, 3, 9)
    assert next_business_date(Calendar.ALL, date(2026, 3, 7)) == date(2026, 3, 7)


def test_the_business_day_is_the_zones_own() -> None:
    """Half past midnight in Prague is still yesterday in UTC."""
    moment = datetime(2026, 3, 9, 23, 30, tzinfo=UTC)
    assert business_day_of(moment, ZoneInfo("Europe/Prague")) == date(2026, 3, 10)
