"""Business days and the moment at which a job's day begins. Pure: no clock, no I/O.

The rule around a change of the clocks, which every fire time follows:

- a local time that does not exist (spring, 02:30) fires at the first moment after the gap (03:00 summer
  time);
- a local time that exists twice (autumn, 02:30) fires once, the first time it comes.

So every business date has exactly one fire time, and never two dates the wrong way round.
"""

from __future__ import annotations

from datetime import UTC, date, datetime, time, timedelta
from enum import StrEnum
from zoneinfo import ZoneInfo

_DAY = timedelta(days=1)


class Calendar(StrEnum):
    """Which dates are business dates."""

    ALL = "all"
    WEEKDAYS = "weekdays"


def is_business_date(calendar: Calendar, day: date) -> bool:
    """Whether the calendar has that date; `weekdays` are Monday to Friday."""
    match calendar:
        case Calendar.ALL:
            return True
        case Calendar.WEEKDAYS:
            return day.isoweekday() <= 5


def next_business_date(calendar: Calendar, day: date) -> date:
    """The first business date at or after `day`."""
    while not is_business_date(calendar, day):
        day += _DAY
    return day


def fire_time(business_date: date, start: time, timezone: ZoneInfo) -> datetime:
    """The moment, in UTC, at which `start` comes on that date in that zone; see the rule at the top."""
    wanted = datetime.combine(business_date, start.replace(tzinfo=None))
    first = wanted.replace(tzinfo=timezone, fold=0).astimezone(UTC)
    if first.astimezone(timezone).replace(tzinfo=None) == wanted:
        return first
    return _end_of_gap(wanted, timezone)


def business_day_of(moment: datetime, timezone: ZoneInfo) -> date:
    """The date that the wall in that zone shows at a moment (timezone-aware)."""
    return moment.astimezone(timezone).date()


def _end_of_gap(wanted: datetime, timezone: ZoneInfo) -> datetime:
    """The first moment after the gap that swallows the local time `wanted`, in UTC.

    In a gap PEP 495 reads fold=1 with the offset after it and fold=0 with the offset before it, so the change
    lies between the two; halving finds it to the second, which is as fine as the zone database is.
    """
    before = wanted.replace(tzinfo=timezone, fold=1).astimezone(UTC)
    after = wanted.replace(tzinfo=timezone, fold=0).astimezone(UTC)
    old_offset = before.astimezone(timezone).utcoffset()
    low, high = int(before.timestamp()), int(after.timestamp())
    while high - low > 1:
        middle = (low + high) // 2
        if datetime.fromtimestamp(middle, timezone).utcoffset() == old_offset:
            low = middle
        else:
            high = middle
    return datetime.fromtimestamp(high, UTC)
