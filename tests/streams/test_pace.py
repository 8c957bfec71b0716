"""Redis's clock on this process's own."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from streams.pace import DRIFT_PER_SECOND, ClockMap, from_us, to_ms

NO_DEADLINE = hypothesis_settings(deadline=None)  # a busy machine is no fault
START = 1_772_414_100.0
"""What Redis's clock shows at the monotonic second 0, unless a test says otherwise."""
DELAYS = st.floats(0, 0.5)


@NO_DEADLINE
@given(
    replies=st.lists(st.tuples(st.floats(0.001, 10), DELAYS, DELAYS), min_size=1, max_size=30),
    drift=st.floats(-DRIFT_PER_SECOND / 2, DRIFT_PER_SECOND / 2),
)
def test_the_truth_is_within_the_bounds(replies: list[tuple[float, float, float]], drift: float) -> None:
    """However slow the way there and back, and however the clocks drift: the difference is where we say."""
    clock, now = ClockMap(), 0.0
    for pause, there, back in replies:
        asked = now + pause
        at = asked + there
        redis_s = START + at * (1 + drift)
        now = at + back
        clock = clock.narrowed(asked=asked, answered=now, redis_us=round(redis_s * 1e6))
        truth = START + now * (1 + drift) - now
        slack = 1e-5 + DRIFT_PER_SECOND * (there + back)
        assert clock.low - slack <= truth <= clock.high + slack


def test_a_quick_reply_counts_more_than_slow_ones() -> None:
    """The narrowest bounds are kept: a slow event loop cannot widen them."""
    clock = ClockMap().narrowed(asked=10.0, answered=10.001, redis_us=round((START + 10.0005) * 1e6))
    for second in (10.1, 10.4, 10.7):
        clock = clock.narrowed(
            asked=second, answered=second + 0.2, redis_us=round((START + second + 0.19) * 1e6)
        )
    assert abs(clock.offset - START) < 0.001
    assert clock.high - clock.low < 0.0015


def test_bounds_widen_with_time() -> None:
    """Clocks run apart: what was exact an hour ago is not now."""
    clock = ClockMap().narrowed(asked=0.0, answered=0.0, redis_us=round(START * 1e6))
    later = clock.narrowed(asked=3599.0, answered=3601.0, redis_us=round((START + 3600) * 1e6))
    assert later.high - later.low == pytest.approx(2 * 3601 * DRIFT_PER_SECOND, rel=0.01)


@pytest.mark.parametrize("step", [-3600.0, -0.05, 0.05, 3600.0])
def test_a_stepped_clock_is_followed(step: float) -> None:
    """A reply that contradicts what was known makes all of that void."""
    clock = ClockMap().narrowed(asked=10.0, answered=10.002, redis_us=round((START + 10.001) * 1e6))
    clock = clock.narrowed(asked=10.1, answered=10.102, redis_us=round((START + 10.101 + step) * 1e6))
    assert abs(clock.offset - (START + step)) < 0.002


def test_there_and_back() -> None:
    """A slot's time is mapped to our clock and an event of ours to UTC, to the microsecond or two."""
    clock = ClockMap().narrowed(asked=5.0, answered=5.0, redis_us=round(START * 1e6))
    assert clock.local(round((START + 1.5) * 1e6)) == pytest.approx(6.5, abs=1e-6)
    found = clock.redis(6.5)
    assert abs(found - datetime.fromtimestamp(START + 1.5, UTC)) <= timedelta(microseconds=2)
    assert found.tzinfo == UTC


def test_units() -> None:
    """Microseconds of Redis as UTC, and UTC as milliseconds that are never early."""
    moment = from_us(1_772_414_100_000_001)
    assert moment == datetime(2026, 3, 2, 1, 15, tzinfo=UTC) + timedelta(microseconds=1)
    assert to_ms(moment) == 1_772_414_100_001
    assert to_ms(datetime(2026, 3, 2, 1, 15, tzinfo=UTC)) == 1_772_414_100_000
