"""Taking: state, pace and room decide how many; lanes give them in their order."""

from __future__ import annotations

from datetime import timedelta
from itertools import pairwise

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from streams import gauges, lanes
from streams.delivery import State
from streams.errors import StaleGeneration, TransitLost
from streams.moves import Feed, PaceState, Place
from tests.streams.line import FAR, HORIZON, Line


async def test_entries_come_whole_and_in_their_order(line: Line) -> None:
    """A take gives each row's delivery and bytes, in the order of the rows, at rising starts."""
    await line.feed_batch(3)

    take = await line.take()

    assert take.state is PaceState.OPEN
    assert [slot.place for slot in take.slots] == [Place("batch:7", f"1-{row}") for row in (1, 2, 3)]
    first = take.slots[0].entry
    assert first is not None
    assert (first.delivery, first.envelope) == ("job:7-1", b"envelope 7-1")
    assert (first.attempts, first.unknowns, first.possible_duplicate) == (0, 0, False)
    starts = [slot.start_us for slot in take.slots]
    assert starts == sorted(starts)
    assert starts[0] >= take.now_us
    await line.assert_whole()


async def test_payload_bytes_survive(line: Line) -> None:
    """Any bytes come out as they went in."""
    every = bytes(range(256)) * 3
    await line.feed("batch:7", [Feed(entry="1-1", delivery="job:1", envelope=every)], expect_last="0-0")

    (entry,) = await line.entries()

    assert entry.envelope == every


async def test_stale_changes_nothing(line: Line) -> None:
    """Under another generation a take fails and leaves every key as it was."""
    await line.feed_batch(3)
    before = await line.snapshot()
    line.generation = 2

    with pytest.raises(StaleGeneration):
        await line.take()

    assert await line.snapshot() == before


async def test_missing_pace_is_stale(line: Line) -> None:
    """Without `pace` there is no taking."""
    await line.feed_batch(1)
    await line.transit.redis.delete(line.keys.pace)

    with pytest.raises(StaleGeneration):
        await line.take()


async def test_second_take_gives_others(line: Line) -> None:
    """What one take gave stays in its worker's hand, the next gives what follows."""
    await line.feed_batch(4)

    first = await line.take(2)
    second = await line.take(2, worker="w2")

    assert [slot.place.entry for slot in first.slots] == ["1-1", "1-2"]
    assert [slot.place.entry for slot in second.slots] == ["1-3", "1-4"]
    await line.assert_whole()


async def test_held_entries_get_the_first_slots(line: Line) -> None:
    """What a worker holds goes before anything fresh, and is not read again."""
    await line.feed_batch(5)
    held = [slot.place for slot in (await line.take(2)).slots]

    take = await line.take(4, held=tuple(held))

    assert [slot.place for slot in take.slots[:2]] == held
    assert [slot.entry is None for slot in take.slots] == [True, True, False, False]
    await line.assert_whole()


async def test_held_entries_of_others_are_left_out(line: Line) -> None:
    """An entry that is not pending under this worker gets no slot: settled, foreign or made up."""
    await line.feed_batch(3)
    foreign, settled = (await line.entries(1, worker="w2")), (await line.entries(1))
    await line.settle(line.ended(settled[0], State.SUCCEEDED))
    claimed = (foreign[0].place, settled[0].place, Place("batch:9", "1-1"))

    take = await line.take(held=claimed)

    assert [slot.place.entry for slot in take.slots] == ["1-3"]


async def test_live_goes_first(line: Line) -> None:
    """With room for all, live events go before batch rows."""
    await line.feed_batch(2)
    await line.feed_live("live:1")

    take = await line.take()

    assert [slot.place.lane for slot in take.slots] == ["live", "batch:7", "batch:7"]


async def test_batch_keeps_its_floor(line: Line) -> None:
    """Beside a full live lane the batch gets its 20 %, whether slots come one by one or many at a time."""
    await line.feed_batch(200)
    await line.feed_live(*[f"live:{i}" for i in range(400)])

    one_by_one = [(await line.take(1)).slots[0].place.lane for _ in range(100)]
    at_once = [slot.place.lane for slot in (await line.take(100)).slots]

    assert one_by_one.count("batch:7") == 20
    assert at_once.count("batch:7") == 20
    await line.assert_whole()


async def test_batch_gets_what_live_leaves(line: Line) -> None:
    """Slots that live does not use go to the batch, and cost it nothing of its floor later."""
    await line.feed_batch(100)
    await line.feed_live("live:1", "live:2")
    assert len((await line.take(10)).slots) == 10

    await line.feed_live(*[f"live:more-{i}" for i in range(100)])
    lanes = [slot.place.lane for slot in (await line.take(10)).slots]

    assert lanes.count("batch:7") == 2


async def test_returns_go_before_fresh_rows(line: Line) -> None:
    """Within the batch lanes, what comes back goes first, then fresh rows, both by batch number."""
    for batch in (10, 9):
        await line.feed_batch(2, batch=batch)
        await line.feed_live(f"job:back-{batch}", lane=f"batch:{batch}:returns")

    lanes = [slot.place.lane for slot in (await line.take()).slots]

    assert lanes == ["batch:9:returns", "batch:10:returns", "batch:9", "batch:9", "batch:10", "batch:10"]


async def test_max_in_flight(line: Line) -> None:
    """No more than the agreed number is in hand over all workers; held entries still get slots."""
    await line.open_again(max_in_flight=3)
    await line.feed_batch(10)

    first = await line.take(2)
    second = await line.take(2, worker="w2")
    third = await line.take(2, worker="w3")
    again = await line.take(2, held=tuple(slot.place for slot in first.slots))

    assert [len(t.slots) for t in (first, second, third, again)] == [2, 1, 0, 2]
    assert third.state is PaceState.FULL


async def test_backed_up(line: Line) -> None:
    """With more than 20,000 outcomes unrecorded nothing is handed out; once recorded it goes on."""
    await line.feed_batch(1)
    await line.set(added=20_001)

    assert (await line.take()).state is PaceState.BACKED_UP
    await line.transit.scripts.recorded(line.keys, generation=1, last="5-0", counted=1)
    take = await line.take()

    assert take.state is PaceState.OPEN
    assert len(take.slots) == 1
    assert take.recorded == "5-0"


async def test_pause_and_resume(line: Line) -> None:
    """A paused partner gets no slot, not even for what is held; resuming works at once."""
    await line.feed_batch(2)
    held = tuple(slot.place for slot in (await line.take(1)).slots)
    await line.transit.scripts.pause(line.keys, generation=1, paused=True)

    paused = await line.take(held=held)
    await line.transit.scripts.pause(line.keys, generation=1, paused=False)
    resumed = await line.take(held=held)

    assert (paused.state, paused.slots) == (PaceState.PAUSED, ())
    assert len(resumed.slots) == 2


async def test_paused_until(line: Line) -> None:
    """Until the partner's pause is over no start lies before its end."""
    await line.feed_batch(2)
    until = await gauges.now_us(line.transit.redis) + 1_000_000
    await line.set(paused_until=until)

    near = await line.take()
    far = await line.take(horizon=FAR)

    assert near.slots == ()
    assert near.next_us == until - 25_000
    assert far.slots[0].start_us == until


async def test_closed(line: Line) -> None:
    """Between fence and unfence nothing is handed out."""
    await line.feed_batch(1)
    line.generation = 2
    await line.transit.scripts.fence(line.keys, generation=2, guard_us=15_000)

    assert (await line.take(horizon=FAR)).state is PaceState.CLOSED


async def test_clock_that_stepped_back(line: Line) -> None:
    """A `tat` that no hand-out explains is brought back, once: sends go on after two seconds."""
    await line.feed_batch(1)
    await line.set(tat=await gauges.now_us(line.transit.redis) + 3_600_000_000)

    near = await line.take()
    again = await line.take()

    assert near.slots == ()
    assert near.next_us == near.now_us + 2_000_001 - 25_000
    # Put off again by each take, it would be waiting for ever.
    assert again.next_us == near.next_us


async def test_horizon_is_bounded(line: Line) -> None:
    """Nobody hands out further ahead than what tells a clock that stepped back."""
    with pytest.raises(ValueError, match="at most"):
        await line.take(horizon=FAR * 2)


async def test_floor_is_not_saved_up(line: Line) -> None:
    """While there is no batch, none of the slots that live gets are owed to a batch that comes later."""
    await line.feed_live(*[f"live:{i}" for i in range(100)])
    for _ in range(50):
        await line.take(1)
    await line.feed_batch(50)

    lanes_taken = [(await line.take(1)).slots[0].place.lane for _ in range(10)]

    assert lanes_taken.count("batch:7") == 2


async def test_fence_keeps_its_second(line: Line) -> None:
    """The second without sends after a fence is not taken for a clock that stepped back."""
    line.generation = 2
    before = await gauges.now_us(line.transit.redis)
    await line.transit.scripts.fence(line.keys, generation=2, guard_us=15_000)
    await line.transit.scripts.unfence(
        line.keys,
        generation=2,
        interval_us=1,
        guard_us=15_000,
        max_in_flight=9,
        floor_percent=20,
        paused=False,
    )
    await line.feed_batch(1, batch=8)

    assert (await line.take()).slots == ()
    take = await line.take(horizon=FAR)

    assert take.slots[0].start_us >= before + 1_015_000


async def test_lost_group(line: Line) -> None:
    """A lane whose group is gone is said to be lost; what was read from others is in the worker's hand."""
    await line.feed_batch(2, batch=7)
    await line.feed_batch(2, batch=8)
    await line.transit.redis.xgroup_destroy(line.keys.lane("batch:8"), "senders")

    with pytest.raises(TransitLost):
        await line.take()

    assert (await line.gauge()).pending == 2


async def test_next_us(line: Line) -> None:
    """Asking again makes sense at once after a full hand, before the horizon runs out, or after it when idle."""
    await line.open_again(interval_us=20_300)
    idle = await line.take()
    await line.feed_batch(10)
    full = await line.take(1)
    paced = await line.take()

    assert idle.next_us == idle.now_us + 50_000
    assert full.next_us == full.now_us
    assert paced.slots[-1].start_us + 20_300 - 25_000 == paced.next_us


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    qps=st.sampled_from([1, 2, 3, 7, 50, 300, 999, 1000]),
    takes=st.lists(st.tuples(st.integers(1, 60), st.sampled_from([50, 400, 2_000])), min_size=3, max_size=12),
)
async def test_no_second_holds_more_than_agreed(line: Line, qps: int, takes: list[tuple[int, int]]) -> None:
    """No second and its guard holds more than Q starts over several workers; T apart, work uses 98 % of Q."""
    line.generation += 1
    interval = (1_000_000 + 15_000) // qps + 1
    await line.open(interval_us=interval, max_in_flight=100_000)
    await line.feed_batch(800, batch=line.generation)
    starts: list[int] = []
    for turn, (limit, horizon_ms) in enumerate(takes):
        take = await line.take(
            limit, worker=f"w{turn % 3}", horizon=max(HORIZON, timedelta(milliseconds=horizon_ms))
        )
        given = [slot.start_us for slot in take.slots]
        assert all(b - a == interval for a, b in pairwise(given))
        starts += given

    assert starts == sorted(starts)
    window = 1_000_000 + 15_000
    for i, start in enumerate(starts):
        assert sum(1 for other in starts[i : i + qps + 1] if other < start + window) <= qps
    assert all(b - a >= interval for a, b in pairwise(starts))
    assert qps * interval <= 1_000_000 / 0.98
    await lanes.drop_transit(line.transit, line.keys)
