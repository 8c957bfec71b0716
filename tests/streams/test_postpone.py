"""Postponing: a send that left too late moves the next ones away, so that no second holds one too many."""

from __future__ import annotations

from datetime import timedelta

import pytest

from streams.errors import StaleGeneration
from tests.streams.line import FAR, Line


async def test_the_next_slot_moves_away(line: Line) -> None:
    """After a postponement the next slot begins later by just that much than it would have."""
    await line.open_again(interval_us=10_000)
    await line.feed_batch(4)
    first, second = (await line.take(limit=2, horizon=FAR)).slots

    await line.transit.scripts.postpone(line.keys, generation=2, by=timedelta(milliseconds=7))

    third, fourth = (await line.take(limit=2, horizon=FAR)).slots
    assert second.start_us - first.start_us == 10_000
    assert third.start_us - second.start_us == 17_000
    assert fourth.start_us - third.start_us == 10_000


async def test_an_idle_partner_is_held_off_from_now(line: Line) -> None:
    """Where no slot is ahead, the next one is not before now and the postponement."""
    await line.open_again(interval_us=10_000)
    await line.feed_batch(1)
    await line.transit.scripts.postpone(line.keys, generation=2, by=timedelta(milliseconds=20))

    (slot,) = (take := await line.take(horizon=FAR)).slots

    assert slot.start_us >= take.now_us
    assert slot.start_us - take.now_us <= 20_000


async def test_stale_changes_nothing(line: Line) -> None:
    """Under another generation it fails and leaves every key as it was."""
    before = await line.snapshot()

    with pytest.raises(StaleGeneration):
        await line.transit.scripts.postpone(line.keys, generation=9, by=timedelta(seconds=1))

    assert await line.snapshot() == before
