"""Feeding, giving back and releasing: how a delivery gets into a lane, never twice."""

from __future__ import annotations

import pytest

from madeira.embedded_valkey import PrivateValkey
from streams import gauges, lanes
from streams.delivery import State
from streams.errors import StaleGeneration
from streams.moves import Fed, Feed, Refused, Released
from streams.transit import Transit
from tests.streams.line import Line


def rows(*numbers: int) -> list[Feed]:
    """Rows of a batch."""
    return [Feed(entry=f"1-{n}", delivery=f"job:{n}", envelope=b"x") for n in numbers]


async def test_first_feed_makes_the_lane(line: Line) -> None:
    """A lane begins with its group at the very start and is in `lanes`."""
    assert await line.feed("batch:7", rows(1, 2), expect_last="0-0") == Fed(2, 0)

    assert await lanes.names(line.transit, line.keys) == ("batch:7",)
    assert await lanes.last_id(line.transit, line.keys, "batch:7") == "1-2"
    assert await line.where("job:2") == "batch:7/1-2"
    assert (await line.gauge()).batch == 2
    await line.assert_whole()


async def test_fed_again_is_refused(line: Line) -> None:
    """A batch lane that is not where the feeder believes takes nothing and says where it is."""
    await line.feed("batch:7", rows(1, 2), expect_last="0-0")
    before = await line.snapshot()

    assert await line.feed("batch:7", rows(1, 2), expect_last="0-0") == Refused("moved", "1-2")
    assert await line.feed("batch:8", rows(3), expect_last="1-2") == Refused("moved", "0-0")

    assert await line.snapshot() == before


async def test_known_deliveries_are_skipped(line: Line) -> None:
    """What Redis has, waiting or done, is not fed again; the last id moves over it."""
    await line.feed("batch:7", rows(1, 2), expect_last="0-0")
    first, _ = await line.entries()
    await line.settle(line.ended(first, State.SUCCEEDED))

    again = await line.feed_live("job:1", "job:2", "job:3", lane="batch:7:returns")
    tail = await line.feed(
        "batch:7",
        [Feed(entry=f"1-{5 + n}", delivery=f"job:{n}", envelope=b"x") for n in (1, 2)],
        expect_last="1-2",
    )

    assert again == Fed(1, 2)
    assert tail == Fed(0, 2)
    assert await lanes.last_id(line.transit, line.keys, "batch:7") == "1-7"
    assert (await line.gauge()).batch == 2
    await line.assert_whole()


async def test_first_rows_skipped(line: Line) -> None:
    """A lane whose first rows are all known exists with its last id, so feeding goes on behind them."""
    await line.feed_live("job:1", lane="batch:7:returns")

    assert await line.feed("batch:7", rows(1), expect_last="0-0") == Fed(0, 1)
    assert await line.feed("batch:7", rows(2), expect_last="1-1") == Fed(1, 0)


async def test_ids_out_of_order(line: Line) -> None:
    """Redis refuses an id that is not above the last; its delivery is not left in `open`."""
    result = await line.feed("batch:7", rows(3, 2, 4), expect_last="0-0")

    assert result == Refused("moved", "1-3")
    assert [await line.where(f"job:{n}") for n in (2, 3, 4)] == [None, "batch:7/1-3", None]
    await line.assert_whole()


@pytest.mark.parametrize("seconds", [-11, 3_600])
async def test_old_reading_is_refused(line: Line, seconds: int) -> None:
    """A status read over ten seconds ago, or by a clock that stepped back since, feeds nothing."""
    read = await gauges.now_us(line.transit.redis) + seconds * 1_000_000
    before = await line.snapshot()

    result = await line.feed("batch:7", rows(1), expect_last="0-0", read_at_us=read)

    assert result == Refused("too_old", "0-0")
    assert await line.snapshot() == before


async def test_reading_within_ten_seconds(line: Line) -> None:
    """Nine seconds are young enough."""
    read = await gauges.now_us(line.transit.redis) - 9_000_000

    assert await line.feed("batch:7", rows(1), expect_last="0-0", read_at_us=read) == Fed(1, 0)


async def test_closed_is_refused(line: Line) -> None:
    """While recovery is at work nothing is fed."""
    line.generation = 2
    await line.transit.scripts.fence(line.keys, generation=2, guard_us=15_000)

    assert await line.feed_live("live:1") == Refused("closed", "")


async def test_stale_changes_nothing(line: Line) -> None:
    """Under another generation nothing is fed, given back or released."""
    await line.feed_batch(1)
    (entry,) = await line.entries()
    before = await line.snapshot()
    line.generation = 2

    with pytest.raises(StaleGeneration):
        await line.feed_live("live:1")
    with pytest.raises(StaleGeneration):
        await line.transit.scripts.give_back(line.keys, generation=2, places=[entry.place])
    with pytest.raises(StaleGeneration):
        await line.transit.scripts.release(line.keys, generation=2, limit=1)

    assert await line.snapshot() == before


async def test_full_memory_refuses_only_feed(private_valkey: PrivateValkey) -> None:
    """At the memory limit feeding is refused whole, while taking and settling go on and drain."""
    transit = Transit.open(private_valkey.url)
    line = Line(transit, transit.keys.partner("AB"))
    await line.open()
    await line.feed_batch(2)
    await transit.redis.config_set("maxmemory", "1")

    assert await line.feed_live("live:1") == Refused("full", "")
    assert await line.where("live:1") is None
    first, second = await line.entries()
    settled = await line.settle(line.ended(first, State.SUCCEEDED), line.ended(second, State.RETRYING))
    released = await transit.scripts.release(line.keys, generation=1, limit=1)

    assert settled.late == (False, False)
    assert released == Released(1, None)
    await transit.close()


async def test_give_back(line: Line) -> None:
    """Unsent rows go to their batch's returns, unsent live events to the tail of live, as they were."""
    await line.feed_batch(2)
    await line.feed_live("live:1", "live:2")
    entries = await line.entries(3)
    places = [entry.place for entry in entries]

    moved = await line.transit.scripts.give_back(line.keys, generation=1, places=places)
    again = await line.transit.scripts.give_back(line.keys, generation=1, places=places)

    assert (moved, again) == (3, 0)
    assert (await line.gauge()).pending == 0
    assert await line.outcomes() == []
    await line.assert_whole()
    back = await line.entries()
    assert [(e.place.lane, e.delivery, e.attempts, e.possible_duplicate) for e in back] == [
        ("live", "live:1", 0, False),
        ("live", "live:2", 0, False),
        ("batch:7:returns", "job:7-1", 0, False),
        ("batch:7", "job:7-2", 0, False),
    ]


async def test_give_back_of_what_is_settled(line: Line) -> None:
    """An entry that is not pending any more stays where it is."""
    await line.feed_batch(1)
    (entry,) = await line.entries()
    await line.settle(line.ended(entry, State.SUCCEEDED))

    assert await line.transit.scripts.give_back(line.keys, generation=1, places=[entry.place]) == 0
    assert await line.where(entry.delivery) == "done:AB/1/batch:7/1-1"


async def test_release_only_what_is_due(line: Line) -> None:
    """Heads that are due go back, earliest first and within the limit; the rest says when."""
    await line.feed_batch(4)
    now_ms = await gauges.now_us(line.transit.redis) // 1_000
    dues = [(60, now_ms - 1_000), (60, now_ms + 90_000), (120, now_ms - 2_000), (240, now_ms + 100_000)]
    for entry, (delay_s, due_ms) in zip(await line.entries(), dues, strict=True):
        await line.settle(line.ended(entry, State.RETRYING, delay_s=delay_s, due_ms=due_ms))

    results = [await line.transit.scripts.release(line.keys, generation=1, limit=1) for _ in range(3)]

    assert results == [
        Released(1, now_ms - 1_000),
        Released(1, now_ms + 90_000),
        Released(0, now_ms + 90_000),
    ]
    assert [entry.delivery for entry in await line.entries()] == ["job:7-3", "job:7-1"]
    await line.assert_whole()


async def test_release_of_many(line: Line) -> None:
    """One step moves as many as it may, however many streams and pieces they are in."""
    await line.feed_batch(700)
    for _ in range(7):
        await line.settle(
            *[
                line.ended(e, State.RETRYING, delay_s=60 if e.place.entry < "1-5" else 6)
                for e in await line.entries()
            ]
        )

    first = await line.transit.scripts.release(line.keys, generation=1, limit=650)
    second = await line.transit.scripts.release(line.keys, generation=1, limit=650)

    assert (first, second) == (Released(650, 0), Released(50, None))
    await line.assert_whole()
