"""Generations: fence closes for all that is older, unfence opens an empty line."""

from __future__ import annotations

import pytest

from streams import gauges, lanes
from streams.delivery import State
from streams.errors import StaleGeneration
from streams.transit import Transit
from tests.streams.line import Line


async def test_new_partner(transit: Transit) -> None:
    """A partner that Redis does not know begins closed, at any generation."""
    keys = transit.keys.partner("new")

    assert await transit.scripts.fence(keys, generation=0, guard_us=15_000) is None

    gauge = await gauges.gauge(transit, keys)
    assert (gauge.generation, gauge.state) == (0, "closed")


async def test_fence_answers_the_one_before(line: Line) -> None:
    """Fencing says which generation was there, and sends wait for a second and the guard."""
    before = await gauges.now_us(line.transit.redis)

    assert await line.transit.scripts.fence(line.keys, generation=4, guard_us=15_000) == 1

    gauge = await line.gauge()
    assert gauge.tat_us >= before + 1_015_000
    assert (gauge.state, gauge.unrecorded, gauge.recorded) == ("closed", 0, "0-0")


async def test_fence_never_lowers(line: Line) -> None:
    """A later generation, and this one once it is open, stays as it is."""
    await line.open_again()
    before = await line.snapshot()

    for generation in (1, 2):
        with pytest.raises(StaleGeneration):
            await line.transit.scripts.fence(line.keys, generation=generation, guard_us=15_000)

    assert await line.snapshot() == before


async def test_fence_twice(line: Line) -> None:
    """A recovery that begins again under its own number keeps the outcomes' count."""
    await line.feed_batch(1)
    (entry,) = await line.entries()
    line.generation = 2
    await line.transit.scripts.fence(line.keys, generation=2, guard_us=15_000)
    await line.settle(line.ended(entry, State.SUCCEEDED, generation=1))

    assert await line.transit.scripts.fence(line.keys, generation=2, guard_us=15_000) == 2

    assert (await line.gauge()).unrecorded == 1


async def test_unfence_begins_at_zero_once(line: Line) -> None:
    """Opening sets all counters to zero; a second time it leaves them and only sets rate and pause."""
    await line.feed_batch(3)
    await line.take(1)
    await lanes.drop_transit(line.transit, line.keys)
    await line.open_again()
    empty = await line.gauge()
    line.fed.clear()
    await line.feed_batch(2)

    await line.transit.scripts.unfence(
        line.keys, generation=2, interval_us=5, guard_us=9, max_in_flight=1, floor_percent=1, paused=True
    )

    assert (empty.state, empty.batch, empty.pending) == ("open", 0, 0)
    gauge = await line.gauge()
    assert (gauge.batch, gauge.paused) == (2, True)


async def test_configure(line: Line) -> None:
    """A new rate holds from the next take on."""
    await line.feed_batch(10)
    await line.transit.scripts.configure(
        line.keys, generation=1, interval_us=20_000, guard_us=15_000, max_in_flight=100, floor_percent=20
    )

    take = await line.take()

    assert len(take.slots) == 3
    assert take.slots[1].start_us - take.slots[0].start_us == 20_000


@pytest.mark.parametrize("move", ["unfence", "configure", "pause", "recorded", "forget"])
async def test_stale_changes_nothing(line: Line, move: str) -> None:
    """No move of another generation changes a key."""
    scripts, keys = line.transit.scripts, line.keys
    bounds = {"interval_us": 1, "guard_us": 1, "max_in_flight": 1, "floor_percent": 1}
    calls = {
        "unfence": lambda: scripts.unfence(keys, generation=2, **bounds, paused=False),
        "configure": lambda: scripts.configure(keys, generation=2, **bounds),
        "pause": lambda: scripts.pause(keys, generation=2, paused=True),
        "recorded": lambda: scripts.recorded(keys, generation=2, last="9-9", counted=9),
        "forget": lambda: scripts.forget(keys, generation=2, upto="9-9", limit=9),
    }
    before = await line.snapshot()

    with pytest.raises(StaleGeneration):
        await calls[move]()

    assert await line.snapshot() == before
