"""Leases, and what happens to what the dead had in hand."""

from __future__ import annotations

from datetime import timedelta

import pytest
from redis.exceptions import ResponseError

from madeira.embedded_valkey import PrivateValkey
from streams import lanes, leases
from streams.connection import reached
from streams.delivery import State
from streams.errors import StaleGeneration, StoreUnavailable, TransitLost
from streams.moves import Entry
from streams.transit import Transit
from tests.streams.line import Line

AT_ONCE = timedelta(0)


async def claim(line: Line, *, min_idle: timedelta = AT_ONCE, limit: int = 10) -> tuple[Entry, ...]:
    """Take over as the living worker w2."""
    return await leases.claim_from_dead(
        line.transit, line.keys, generation=line.generation, reaper="w2", min_idle=min_idle, limit=limit
    )


async def test_a_lease_is_held_once_and_renewed(transit: Transit) -> None:
    """An id belongs to one worker; its lease runs fifteen seconds from the last heartbeat."""
    assert await leases.acquire(transit, "w1")
    assert not await leases.acquire(transit, "w1")
    await transit.redis.pexpire(transit.keys.worker("w1"), 1_000)
    assert await leases.renew(transit, "w1")
    assert 14_000 < await transit.redis.pttl(transit.keys.worker("w1")) <= 15_000


async def test_an_expired_lease_is_never_renewed(transit: Transit) -> None:
    """Once it is gone a heartbeat does not bring it back."""
    await leases.acquire(transit, "w1")
    await leases.end(transit, "w1")

    assert not await leases.renew(transit, "w1")
    assert await leases.alive(transit, ["w1"]) == frozenset()


async def test_alive(transit: Transit) -> None:
    """Only those with a lease are alive."""
    await leases.acquire(transit, "w1")

    assert await leases.alive(transit, ["w1", "w2"]) == {"w1"}
    assert await leases.alive(transit, []) == frozenset()


async def test_the_dead_are_taken_over(line: Line) -> None:
    """What a worker without lease had in hand comes to the reaper, who settles it; the counters stay right."""
    await line.feed_batch(3)
    left = await line.entries(2)
    await leases.acquire(line.transit, "w2")
    mine = await line.entries(1, worker="w2")

    taken = await claim(line)
    await line.assert_whole()
    await line.settle(*[line.ended(entry, State.RETRYING) for entry in taken])

    assert list(taken) == left
    assert await lanes.adopt(line.transit, line.keys, worker="w2") == tuple(mine)
    await line.assert_whole()


async def test_the_living_keep_theirs(line: Line) -> None:
    """A lease protects, however long an entry is idle."""
    await line.feed_batch(1)
    await leases.acquire(line.transit, "w1")
    await line.entries()

    assert await claim(line) == ()


async def test_a_slow_send_is_left_alone(line: Line) -> None:
    """An entry is only taken over when it was idle longer than a request may take."""
    await line.feed_batch(1)
    await line.entries()

    assert await claim(line, min_idle=timedelta(seconds=20)) == ()
    assert len(await claim(line)) == 1


async def test_takeover_that_was_not_settled(line: Line) -> None:
    """A reaper that died in between leaves its entries to the next one."""
    await line.feed_batch(1)
    await line.entries()

    first = await claim(line)
    second = await claim(line)

    assert first == second


async def test_takeover_goes_on_where_the_limit_was(line: Line) -> None:
    """A limit bounds one step; the consumer stays until it has nothing."""
    await line.feed_batch(3)
    await line.entries()

    first = await claim(line, limit=2)
    await line.settle(*[line.ended(entry, State.DEAD) for entry in first])
    second = await claim(line, limit=2)

    assert [len(first), len(second)] == [2, 1]
    await line.assert_whole()


async def test_empty_consumers_of_the_dead_are_removed(line: Line) -> None:
    """A consumer without lease and entries goes; one with entries would lose them and stays."""
    await line.feed_batch(2)
    (done,) = await line.entries(1, worker="gone")
    await line.settle(line.ended(done, State.SUCCEEDED))
    await leases.acquire(line.transit, "w1")
    await line.entries()

    await claim(line)

    consumers = await line.transit.redis.xinfo_consumers(line.keys.lane("batch:7"), "senders")
    assert [consumer["name"] for consumer in consumers] == [b"w1"]


async def test_late_success_of_the_dead(line: Line) -> None:
    """The one believed dead hands in a success: the reaper's unknown is withdrawn."""
    await line.feed_batch(1)
    (entry,) = await line.entries()
    (taken,) = await claim(line)
    await line.settle(line.ended(taken, State.RETRYING))

    settled = await line.settle(line.ended(entry, State.SUCCEEDED))

    assert settled.late == (True,)
    assert (await line.gauge()).batch == 0
    await line.assert_whole()


async def test_stale_and_lost(line: Line) -> None:
    """Another generation takes nothing over; a group that is gone is a loss."""
    await line.feed_batch(1)
    await line.entries()
    before = await line.snapshot()
    line.generation = 2
    with pytest.raises(StaleGeneration):
        await claim(line)
    assert await line.snapshot() == before

    line.generation = 1
    await line.transit.redis.xgroup_destroy(line.keys.lane("batch:7"), "senders")
    with pytest.raises(TransitLost):
        await claim(line)


async def test_leases_at_the_memory_limit(private_valkey: PrivateValkey) -> None:
    """A full Redis must drain: workers stay alive, and new ones begin."""
    transit = Transit.open(private_valkey.url)
    try:
        assert await leases.acquire(transit, "w1")
        await transit.redis.config_set("maxmemory", 1)
        assert await leases.renew(transit, "w1")
        assert await leases.acquire(transit, "w2")
        assert not await leases.acquire(transit, "w2")
        assert 14_000 < await transit.redis.pttl(transit.keys.worker("w2")) <= 15_000
        with pytest.raises(StoreUnavailable, match="memory limit"), reached():
            await transit.redis.set("anything", "1")
    finally:
        await transit.close()


@pytest.mark.parametrize(
    "said",
    [
        "MISCONF Errors writing to the AOF file: No space left on device",
        "Command # 1 (HSET k f v) of pipeline caused error: MISCONF Errors writing to the AOF file",
        "BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.",
        "NOREPLICAS Not enough good replicas to write.",
    ],
)
def test_what_a_server_refuses_for_a_while_is_no_fault_of_ours(said: str) -> None:
    """Nothing was carried out, and it passes: services wait for it instead of ending their process."""
    with pytest.raises(StoreUnavailable), reached():
        raise ResponseError(said)
