"""Settling: what happened is said once, what comes late only adds its outcome, a late success takes the copy back."""

from __future__ import annotations

import pytest

from streams import gauges
from streams.delivery import State
from streams.errors import StaleGeneration, TransitLost
from streams.moves import Entry, Released, Settled
from tests.streams.line import Line


async def in_hand(line: Line, *, worker: str = "w1") -> Entry:
    """One batch row in a worker's hand."""
    await line.feed_batch(1)
    (entry,) = await line.entries(worker=worker)
    return entry


async def copy_in_lane(line: Line, entry: Entry) -> str:
    """The entry waits for a delay of no time and is back in its lane."""
    await line.settle(line.ended(entry, State.RETRYING, delay_s=1))
    await line.transit.scripts.release(line.keys, generation=line.generation, limit=10)
    where = await line.where(entry.delivery)
    assert where is not None
    return where


async def test_success(line: Line) -> None:
    """A success leaves the lane and is `done` until it is forgotten; its outcome is written."""
    entry = await in_hand(line)

    settled = await line.settle(line.ended(entry, State.SUCCEEDED))

    assert settled.late == (False,)
    assert await line.where("job:7-1") == "done:AB/1/batch:7/1-1"
    assert await line.outcomes() == [
        {
            b"o": b"succeeded job:7-1",
            b"d": b"job:7-1",
            b"a": b"AB/1/batch:7/1-1",
            b"t": b"1",
            b"l": b"",
        }
    ]
    await line.assert_whole()
    assert (await line.gauge()).batch == 0


async def test_dead(line: Line) -> None:
    """A dead delivery is done as well, and can be looked at in the dead stream."""
    entry = await in_hand(line)

    await line.settle(line.ended(entry, State.DEAD))

    assert await line.where("job:7-1") == "done:AB/1/batch:7/1-1"
    ((_, fields),) = await line.transit.redis.xrange(line.keys.dead)
    assert fields == {b"d": b"job:7-1", b"a": b"AB/1/batch:7/1-1", b"o": b"dead job:7-1"}
    await line.assert_whole()


async def test_retry_waits_and_returns(line: Line) -> None:
    """A retry waits in its delay with what the next attempt has to know, and returns beside its batch."""
    entry = await in_hand(line)
    later = await gauges.now_us(line.transit.redis) // 1_000 + 3_600_000

    await line.settle(line.ended(entry, State.RETRYING, delay_s=3_600, due_ms=later))

    where = await line.where("job:7-1")
    assert where is not None
    assert where.startswith("delay:3600/")
    gauge = await line.gauge()
    assert [(d.seconds, d.depth, d.head_due_ms) for d in gauge.delays] == [(3_600, 1, later)]
    assert gauge.batch == 1
    await line.assert_whole()
    assert await line.transit.scripts.release(line.keys, generation=1, limit=10) == Released(0, later)


async def test_retry_comes_back(line: Line) -> None:
    """What was released is taken with its attempts, its flag and its bytes."""
    entry = await in_hand(line)

    where = await copy_in_lane(line, entry)
    (again,) = await line.entries()

    assert where == f"batch:7:returns/{again.place.entry}"
    assert (again.delivery, again.envelope) == (entry.delivery, entry.envelope)
    assert (again.attempts, again.unknowns, again.possible_duplicate) == (1, 0, True)
    await line.assert_whole()


async def test_live_returns_to_live(line: Line) -> None:
    """A live retry goes back to live and counts there all the while."""
    await line.feed_live("live:1")
    (entry,) = await line.entries()

    await copy_in_lane(line, entry)

    gauge = await line.gauge()
    assert (gauge.live, gauge.batch) == (1, 0)
    (again,) = await line.entries()
    assert again.place.lane == "live"
    await line.settle(line.ended(again, State.SUCCEEDED))
    assert (await line.gauge()).live == 0


@pytest.mark.parametrize("state", [State.SUCCEEDED, State.DEAD, State.RETRYING])
async def test_twice(line: Line, state: State) -> None:
    """The same settlement again adds its outcome, marked late, and changes nothing else."""
    entry = await in_hand(line)
    ended = line.ended(entry, state)
    await line.settle(ended)
    where = await line.where(entry.delivery)
    before = await line.gauge()

    again = await line.settle(ended)

    assert again.late == (True,)
    assert [fields[b"l"] for fields in await line.outcomes()] == [b"", b"late"]
    assert await line.where(entry.delivery) == where
    after = await line.gauge()
    assert (after.batch, after.pending, after.delays, after.dead) == (
        before.batch,
        before.pending,
        before.delays,
        before.dead,
    )
    await line.assert_whole()


async def test_stale_changes_nothing(line: Line) -> None:
    """Under another generation a settlement fails and leaves every key as it was."""
    entry = await in_hand(line)
    ended = line.ended(entry, State.SUCCEEDED)
    before = await line.snapshot()
    line.generation = 2

    with pytest.raises(StaleGeneration):
        await line.settle(ended)

    assert await line.snapshot() == before


@pytest.mark.parametrize("state", [State.RETRYING, State.DEAD])
async def test_late_failure_changes_nothing(line: Line, state: State) -> None:
    """A retry or a no that comes after somebody else's settlement only adds its outcome."""
    entry = await in_hand(line)
    where = await copy_in_lane(line, entry)

    settled = await line.settle(line.ended(entry, state))

    assert settled.late == (True,)
    assert await line.where(entry.delivery) == where
    assert (await line.gauge()).batch == 1
    await line.assert_whole()


async def test_late_success_withdraws_from_the_lane(line: Line) -> None:
    """A success that comes when its copy waits in a lane takes it out of there."""
    entry = await in_hand(line)
    await copy_in_lane(line, entry)

    settled = await line.settle(line.ended(entry, State.SUCCEEDED))

    assert settled.late == (True,)
    assert await line.where(entry.delivery) == "done:AB/1/batch:7/1-1"
    assert (await line.take()).slots == ()
    assert (await line.gauge()).batch == 0
    await line.assert_whole()


async def test_late_success_withdraws_from_a_hand(line: Line) -> None:
    """A success that comes when its copy is in another worker's hand makes that worker's end the late one.

    It says that the copy may have been sent: that worker may die and never tell.
    """
    entry = await in_hand(line)
    await copy_in_lane(line, entry)
    (copy,) = await line.entries(worker="w2")

    await line.settle(line.ended(entry, State.SUCCEEDED))
    settled = await line.settle(line.ended(copy, State.RETRYING))

    assert settled.late == (True,)
    assert [fields[b"l"] for fields in await line.outcomes()][-2:] == [b"twice", b"late"]
    assert await line.where(entry.delivery) == "done:AB/1/batch:7/1-1"
    assert (await line.gauge()).pending == 0
    await line.assert_whole()


async def test_late_success_withdraws_from_a_delay(line: Line) -> None:
    """A success that comes when its copy waits in a delay takes it out, and the delay's head is the next one."""
    await line.feed_batch(2)
    first, second = await line.entries()
    now_ms = await gauges.now_us(line.transit.redis) // 1_000
    await line.settle(
        line.ended(first, State.RETRYING, due_ms=now_ms + 60_000),
        line.ended(second, State.RETRYING, due_ms=now_ms + 60_005),
    )

    await line.settle(line.ended(first, State.SUCCEEDED))
    one_left = await line.gauge()
    await line.settle(line.ended(second, State.SUCCEEDED))

    assert [(d.depth, d.head_due_ms) for d in one_left.delays] == [(1, now_ms + 60_005)]
    assert one_left.batch == 1
    assert (await line.gauge()).delays == ()
    await line.assert_whole()


async def test_delay_emptied_and_filled_in_one_call(line: Line) -> None:
    """A call that takes the only copy out of a delay and puts another one in leaves the delay known."""
    await line.feed_batch(3)
    one, two, three = await line.entries()
    await line.settle(line.ended(one, State.RETRYING))

    await line.settle(
        line.ended(two, State.RETRYING),
        line.ended(one, State.SUCCEEDED),
        line.ended(two, State.SUCCEEDED),
        line.ended(three, State.RETRYING),
    )

    assert str(await line.where(three.delivery)).startswith("delay:60/")
    assert [delay.depth for delay in (await line.gauge()).delays] == [1]
    await line.assert_whole()


async def test_late_success_withdraws_from_the_dead(line: Line) -> None:
    """A success that comes after the copy was given up is done, and no longer among the dead."""
    entry = await in_hand(line)
    await copy_in_lane(line, entry)
    (copy,) = await line.entries(worker="w2")
    await line.settle(line.ended(copy, State.DEAD))

    await line.settle(line.ended(entry, State.SUCCEEDED))

    assert await line.where(entry.delivery) == "done:AB/1/batch:7/1-1"
    assert (await line.gauge()).dead == 0
    await line.assert_whole()


async def test_handed_in_while_closed(line: Line) -> None:
    """While recovery collects, an outcome of the older generation still acks its entry; a lost one is `handed`."""
    await line.feed_batch(2)
    kept, lost = await line.entries()
    line.generation = 2
    await line.transit.scripts.fence(line.keys, generation=2, guard_us=15_000)

    first = await line.settle(line.ended(kept, State.SUCCEEDED, generation=1))
    await line.transit.redis.delete(line.keys.lane("batch:7"))
    second = await line.settle(line.ended(lost, State.RETRYING, generation=1))

    assert (first.late, second.late) == ((False,), (True,))
    assert [fields[b"l"] for fields in await line.outcomes()] == [b"", b"handed"]


async def test_same_id_of_an_older_generation(line: Line) -> None:
    """A batch's ids repeat after recovery: an attempt of before must not ack the row that was fed since."""
    from streams import lanes

    before = await in_hand(line)
    await lanes.drop_transit(line.transit, line.keys)
    await line.open_again()
    line.fed.clear()
    now = await in_hand(line, worker="w2")
    assert now.place == before.place

    settled = await line.settle(line.ended(before, State.RETRYING, generation=1))

    assert settled.late == (True,)
    assert await line.where(now.delivery) == "batch:7/1-1"
    assert (await line.gauge()).pending == 1


async def test_entry_lost_in_hand(line: Line) -> None:
    """A retry whose bytes are gone from the lane is a loss that recovery must mend; other items are settled."""
    await line.feed_batch(2)
    gone, fine = await line.entries()
    await line.transit.redis.xdel(line.keys.lane("batch:7"), "1-1")

    with pytest.raises(TransitLost):
        await line.settle(line.ended(gone, State.RETRYING), line.ended(fine, State.SUCCEEDED))

    assert await line.where(fine.delivery) == "done:AB/1/batch:7/1-2"
    assert [fields[b"d"] for fields in await line.outcomes()] == [b"job:7-1", b"job:7-2"]


async def test_nothing_to_settle(line: Line) -> None:
    """An empty list is no call."""
    assert await line.settle() == Settled((), ())


async def test_forget(line: Line) -> None:
    """Forgetting trims outcomes up to the given one and removes exactly the `done` that they made."""
    await line.feed_batch(3)
    first, second, third = await line.entries()
    one = await line.settle(line.ended(first, State.SUCCEEDED), line.ended(second, State.RETRYING))
    two = await line.settle(line.ended(third, State.DEAD))
    upto = one.outcome_ids[-1]

    trimmed = [
        await line.transit.scripts.forget(line.keys, generation=1, upto=upto, limit=1) for _ in range(3)
    ]

    assert trimmed == [1, 1, 0]
    assert await line.where("job:7-1") is None
    assert str(await line.where("job:7-2")).startswith("delay:60/")
    assert await line.where("job:7-3") == "done:AB/1/batch:7/1-3"
    assert len(await line.outcomes()) == 1
    assert await line.transit.scripts.forget(line.keys, generation=1, upto=two.outcome_ids[0], limit=10) == 1


async def test_forget_leaves_another_done(line: Line) -> None:
    """A `done` that a later outcome made stays until that one is forgotten."""
    entry = await in_hand(line)
    await copy_in_lane(line, entry)
    (copy,) = await line.entries(worker="w2")
    dead = await line.settle(line.ended(copy, State.DEAD))
    late = await line.settle(line.ended(entry, State.SUCCEEDED))

    await line.transit.scripts.forget(line.keys, generation=1, upto=dead.outcome_ids[0], limit=10)
    kept = await line.where(entry.delivery)
    await line.transit.scripts.forget(line.keys, generation=1, upto=late.outcome_ids[0], limit=10)

    assert kept == "done:AB/1/batch:7/1-1"
    assert await line.where(entry.delivery) is None


async def test_recorded_never_lowers(line: Line) -> None:
    """Neither the id nor the count goes back, and ids compare as numbers."""
    for last, counted in (("1000-2", 7), ("999-9", 3), ("1000-10", 7)):
        await line.transit.scripts.recorded(line.keys, generation=1, last=last, counted=counted)

    assert (await line.take()).recorded == "1000-10"
    assert await line.transit.redis.hget(line.keys.pace, "counted") == b"7"
