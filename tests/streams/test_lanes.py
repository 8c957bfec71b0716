"""What recovery and a worker after an error look at."""

from __future__ import annotations

import pytest
from redis.asyncio.client import Pipeline

from streams import gauges, lanes
from streams.delivery import State
from streams.errors import StaleGeneration, StoreUnavailable, TransitLost
from streams.transit import Transit
from tests.streams.line import Line


async def test_adopt_finds_what_is_in_hand(line: Line) -> None:
    """All entries pending under a worker come back whole, those of others and settled ones don't."""
    await line.feed_batch(3)
    await line.feed_live("live:1")
    mine = await line.entries(3)
    await line.entries(worker="w2")
    await line.settle(line.ended(mine[1], State.SUCCEEDED))

    assert await lanes.adopt(line.transit, line.keys, worker="w1") == (mine[0], mine[2])
    assert await lanes.adopt(line.transit, line.keys, worker="w3") == ()


async def test_adopt_without_group(line: Line) -> None:
    """A group that is gone is a loss, not an empty hand."""
    await line.feed_batch(1)
    await line.transit.redis.xgroup_destroy(line.keys.lane("batch:7"), "senders")

    with pytest.raises(TransitLost):
        await lanes.adopt(line.transit, line.keys, worker="w1")


async def test_last_id(line: Line) -> None:
    """The last id stays when the lane is drained; a missing lane is at 0-0."""
    await line.feed_batch(2)
    await line.settle(*[line.ended(e, State.SUCCEEDED) for e in await line.entries()])

    assert await lanes.last_id(line.transit, line.keys, "batch:7") == "1-2"
    assert await lanes.last_id(line.transit, line.keys, "batch:8") == "0-0"


@pytest.mark.parametrize("lost", ["pace", "lanes", "open", "lane", "group", "nothing"])
async def test_groups_intact(line: Line, lost: str) -> None:
    """Any of what a partner under way needs is missed."""
    await line.feed_batch(1)
    redis, keys = line.transit.redis, line.keys
    names = {"pace": keys.pace, "lanes": keys.lanes, "open": keys.open, "lane": keys.lane("batch:7")}
    if lost in names:
        await redis.delete(names[lost])
    elif lost == "group":
        await redis.xgroup_destroy(keys.lane("batch:7"), "senders")

    assert await lanes.groups_intact(line.transit, keys) is (lost == "nothing")


async def test_idle_partner_is_intact(line: Line) -> None:
    """A partner that was opened and never fed lacks nothing."""
    assert await lanes.groups_intact(line.transit, line.keys)


async def test_drop_transit(line: Line) -> None:
    """Everything goes but `pace` and the outcomes; other partners keep theirs."""
    other = Line(line.transit, line.transit.keys.partner("ABC"))
    await other.open()
    await other.feed_batch(1)
    await line.feed_batch(3)
    first, second, _ = await line.entries()
    await line.settle(line.ended(first, State.DEAD), line.ended(second, State.RETRYING))
    kept = {line.keys.pace, line.keys.outcomes(1)}

    dropped = await lanes.drop_transit(line.transit, line.keys)

    # lanes, the lane, open, the delay, delays, dead
    assert dropped == 6
    assert set(await line.snapshot()) == kept
    assert await lanes.groups_intact(line.transit, other.keys)
    assert await lanes.drop_outcomes(line.transit, line.keys, generation=1)


async def test_suspects(line: Line) -> None:
    """Suspect is what is in a hand, what is due in a delay, and the first unread of each lane."""
    await line.feed_batch(6)
    await line.feed_batch(3, batch=8)
    now_ms = await gauges.now_us(line.transit.redis) // 1_000
    due, waiting, _, done = await line.entries(4)
    await line.settle(
        line.ended(due, State.RETRYING, due_ms=now_ms - 1),
        line.ended(waiting, State.RETRYING, due_ms=now_ms + 60_000),
        line.ended(done, State.SUCCEEDED),
    )

    found = await lanes.suspects(line.transit, line.keys, first=1)

    assert found == {"job:7-1", "job:7-3", "job:7-5", "job:8-1"}


async def test_unreachable() -> None:
    """A server that is not there is told as our own error."""
    transit = Transit.open("redis://127.0.0.1:1")

    with pytest.raises(StoreUnavailable):
        await gauges.now_us(transit.redis)
    with pytest.raises(StoreUnavailable):
        await transit.scripts.pause(transit.keys.partner("AB"), generation=1, paused=True)
    await transit.close()


async def test_a_batch_that_is_over_is_retired(line: Line) -> None:
    """Its two lanes go once both are empty, and takes look at the others only; a second run finds nothing."""
    await line.feed_batch(2)
    await line.feed_batch(1, batch=8)
    one, two, other = await line.entries()
    await line.transit.scripts.give_back(line.keys, generation=1, places=[two.place])
    await line.settle(line.ended(one, State.SUCCEEDED))

    assert await lanes.emptied(line.transit, line.keys) == ()
    assert await line.transit.scripts.retire(line.keys, generation=1, batch_id=7) == 0
    (back,) = await line.entries()
    await line.settle(line.ended(back, State.DEAD))
    assert await lanes.emptied(line.transit, line.keys) == (7,)
    assert await line.transit.scripts.retire(line.keys, generation=1, batch_id=7) == 2
    assert await line.transit.scripts.retire(line.keys, generation=1, batch_id=7) == 0

    assert await lanes.names(line.transit, line.keys) == ("batch:8",)
    assert not await line.transit.redis.exists(line.keys.lane("batch:7"), line.keys.lane("batch:7:returns"))
    assert await lanes.groups_intact(line.transit, line.keys)
    await line.settle(line.ended(other, State.SUCCEEDED))
    await line.assert_whole()


@pytest.mark.parametrize("why", ["stale", "closed"])
async def test_nothing_is_retired_for_another_generation(line: Line, why: str) -> None:
    """Neither for one that is over nor while recovery is at work."""
    await line.feed_batch(1)
    await line.settle(*[line.ended(e, State.SUCCEEDED) for e in await line.entries()])
    await line.transit.scripts.fence(line.keys, generation=2, guard_us=0)
    if why == "stale":
        with pytest.raises(StaleGeneration):
            await line.transit.scripts.retire(line.keys, generation=1, batch_id=7)
    else:
        assert await line.transit.scripts.retire(line.keys, generation=2, batch_id=7) == 0
    assert await lanes.names(line.transit, line.keys) == ("batch:7",)


async def test_a_lane_that_is_retired_meanwhile_is_no_loss(line: Line) -> None:
    """Whoever read the names just before leaves out the one that went; one that only lost its key is missed."""
    await line.feed_batch(1)
    await line.feed_batch(1, batch=8)
    retired = "redis.call('ZREM', KEYS[1], 'batch:7') "
    lost = "redis.call('UNLINK', KEYS[2]) return redis.call('XINFO', 'GROUPS', KEYS[2])"

    async def asked(first: str) -> list[tuple[str, object]]:
        def ask(pipeline: Pipeline, key: str) -> object:
            if key.endswith(":7"):
                return pipeline.eval(first + lost, 2, line.keys.lanes, key)
            return pipeline.xlen(key)

        return await lanes.each(line.transit, line.keys, ask)

    with pytest.raises(TransitLost):
        await asked("")
    assert await asked(retired) == [("batch:8", 1)]
