"""What needs attention, by what was read; pure."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, date, datetime, timedelta

import pytest

from madeira.status import (
    BatchRow,
    PartnerStatus,
    Recorded,
    Store,
    inbound_problems,
    problems,
    redis_problems,
)
from streams.gauges import BrokenGauge, DelayGauge, Gauge
from streams.inbound import Depth
from streams.server import ServerFacts

NOW = datetime(2026, 3, 2, 6, 0, tzinfo=UTC)
STORE = Store(number=3, state="open", now=NOW, workers=2, silent=0, quarantined=0)
GAUGE = Gauge(3, "open", False, 0, 0, 0, 0, 0, "0-0", (), (), 0, 0)
FINE = PartnerStatus("AB", 50, Recorded("AB", 0, 0, 10, 0, 0, NOW), GAUGE, paused=False)
BATCH = BatchRow(7, "payment-orders", date(2026, 3, 2), 1, "released", 10, 0, None, NOW, NOW, None)


def with_record(**changes: object) -> PartnerStatus:
    """AB with another record."""
    return replace(FINE, recorded=replace(FINE.recorded, **changes))  # type: ignore[arg-type] # fields by name


def with_gauge(**changes: object) -> PartnerStatus:
    """AB with 5 pending deliveries and something else in Redis."""
    return replace(with_record(pending=5), gauge=replace(GAUGE, **changes))  # type: ignore[arg-type] # fields by name


def test_nothing_needs_attention() -> None:
    """A night that goes well has no problem, also while there is work."""
    assert problems(STORE, [FINE], [BATCH]) == ()
    assert problems(STORE, [with_record(pending=5, last_progress=NOW - timedelta(seconds=59))], [BATCH]) == ()
    assert problems(STORE, [with_record(pending=5, last_progress=None)], [BATCH]) == (), "not begun yet"
    assert problems(replace(STORE, workers=0), [FINE], [BATCH]) == (), "nothing waits for a worker"


@pytest.mark.parametrize(
    ("store", "partner", "said"),
    [
        (replace(STORE, state="recovering"), FINE, "recovery is under way (generation 3)"),
        (replace(STORE, quarantined=1200), FINE, "1,200 outcomes could not be recorded"),
        (replace(STORE, silent=1), FINE, "1 workers were not heard of"),
        (replace(STORE, workers=0), with_record(retrying=2), "2 deliveries wait and no worker is running"),
        (
            STORE,
            replace(with_gauge(), paused=True),
            "AB is paused with 5 deliveries waiting: `madeira resume AB`",
        ),
        (
            STORE,
            replace(
                with_record(pending=5, last_progress=NOW - timedelta(seconds=61)),
                gauge=replace(GAUGE, unrecorded=4),
            ),
            "4 outcomes wait in Redis, so it is the recorder",
        ),
        (
            STORE,
            with_gauge(
                broken=BrokenGauge(1_772_414_100_000_000, "no connection", 20, 1_772_431_200_000_000, False)
            ),
            "AB is down since 2026-03-02 01:15:00+00:00 (no connection), 5 deliveries wait and lose no attempt",
        ),
        (STORE, with_gauge(unrecorded=5_001), "the recorder is 5,001 outcomes behind for AB"),
        (
            STORE,
            with_record(pending=5, last_progress=NOW - timedelta(seconds=61)),
            "AB has 5 deliveries and no progress since",
        ),
        (
            STORE,
            with_gauge(delays=(DelayGauge(60, 1, int(NOW.timestamp() * 1000) - 60_001),)),
            "AB has retries that are due and not released",
        ),
    ],
)
def test_each_problem_is_a_sentence(store: Store, partner: PartnerStatus, said: str) -> None:
    """One problem, one sentence, with what to do where that is known."""
    (found,) = problems(store, [partner], [])
    assert said in found


def test_a_partner_that_never_began() -> None:
    """A batch was released over a minute ago and nothing of it has an outcome; the night before does not count."""
    released = replace(BATCH, released_at=NOW - timedelta(seconds=61))
    for last in (None, NOW - timedelta(days=1)):
        (found,) = problems(STORE, [with_record(pending=5, last_progress=last)], [released])
        assert "AB has 5 deliveries and no progress since" in found
        assert problems(STORE, [with_record(pending=5, last_progress=last)], [BATCH]) == ()


def test_a_live_event_that_stands_still() -> None:
    """It has its minute from its own acceptance, however long ago the last progress was."""
    yesterday = NOW - timedelta(days=1)
    for since, stuck in ((NOW - timedelta(seconds=59), False), (NOW - timedelta(seconds=61), True)):
        each = with_record(pending=1, live=1, live_since=since, last_progress=yesterday)
        found = problems(STORE, [each], [])
        assert bool(found) == stuck, found


@pytest.mark.parametrize(
    ("changes", "oldest_ms", "said"),
    [
        ({}, int(NOW.timestamp() * 1000) - 60_001, "live events wait for a router since 2026-03-02 05:58:59"),
        ({"workers": 0}, 0, "start `madeira work`"),
        ({"unrouted_since": NOW - timedelta(seconds=61)}, None, "look for store_away"),
        (
            {"unroutable": 1_200},
            None,
            "1,200 live events found no partner, or not all: `madeira unroutable list`",
        ),
        ({"conflicts": 2}, None, "2 ids came again with another body"),
        ({"inbound_quarantined": 1}, None, "1 inbound entries could not be read"),
    ],
)
def test_live_events_without_a_partner(changes: dict[str, object], oldest_ms: int | None, said: str) -> None:
    """Each with what to do; an event that came a moment ago is none."""
    fresh = Depth(1, int(NOW.timestamp() * 1000) - 59_000)
    assert inbound_problems(replace(STORE, unrouted_since=NOW - timedelta(seconds=59)), fresh) == ()
    (found,) = inbound_problems(replace(STORE, **changes), Depth(0, oldest_ms))  # type: ignore[arg-type] # by name
    assert said in found


def test_a_redis_that_is_full_or_cannot_write() -> None:
    """Both are said with what to do."""
    fine = ServerFacts("Redis 7.0.15", (7, 0, 15), "noeviction", 90, 0, True, True, "everysec", False)
    assert redis_problems(fine) == ()
    assert redis_problems(replace(fine, memory_limit=100)) == ()
    (full,) = redis_problems(replace(fine, memory_limit=90))
    assert "memory limit (90 of 90 bytes)" in full
    (broken,) = redis_problems(replace(fine, aof_healthy=False))
    assert "append-only file" in broken


def test_a_pause_explains_that_nothing_moves() -> None:
    """A paused partner is that problem alone, however long it stands still."""
    late = DelayGauge(60, 1, 0)
    stands = replace(with_gauge(delays=(late,)), paused=True)
    stands = replace(stands, recorded=replace(stands.recorded, last_progress=NOW - timedelta(days=1)))
    assert len(problems(STORE, [stands], [])) == 1


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"state": "failed"}, "batch 7 (payment-orders for 2026-03-02) failed, nothing of it was sent"),
        ({"state": "running", "lease_over": True}, "batch 7 (payment-orders for 2026-03-02) is stuck"),
    ],
)
def test_batches(changes: dict[str, object], said: str) -> None:
    """A failed one and one whose runner is gone; one that is being run is none."""
    (found,) = problems(STORE, [FINE], [replace(BATCH, **changes)])  # type: ignore[arg-type] # fields by name
    assert said in found
    assert problems(STORE, [FINE], [replace(BATCH, state="running", lease_over=False)]) == ()
