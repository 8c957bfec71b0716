"""Takeover on real servers: what the dead had in hand is said to be unknown, the living are left alone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import cast

import pytest

from pipelines.recover import Recovery
from pipelines.takeover import Takeover
from streams import leases
from streams.delivery import WORKER_DIED, State
from streams.errors import StaleGeneration
from streams.gauges import gauge
from streams.lanes import Raw
from streams.scripts import Entry
from tests.pipelines.night import WORKER, Night, attempt, night, settlement

ME = "worker-2"
TODAY = datetime.now(UTC)
"""Young enough that a retry is still planned."""
LONG = timedelta(seconds=60)
"""Longer than a request to these partners can take."""


@pytest.fixture
async def stores(database_url: str, redis_url: str, key_prefix: str) -> AsyncIterator[Night]:
    """Two partners in generation 1; the worker that takes over has its lease."""
    async with night(database_url, redis_url, key_prefix) as found:
        await leases.acquire(found.transit, ME)
        yield found


@pytest.fixture
def takeover(stores: Night) -> Takeover:
    """What is tested."""
    return Takeover(stores.pool, stores.transit, stores.partners)


async def left_by(stores: Night, rows: int, *, idle: timedelta, worker: str = WORKER) -> tuple[Entry, ...]:
    """Entries in this worker's hand for so long."""
    await stores.release(rows, start=TODAY)
    await stores.feeder.step(1)
    entries = await stores.take(rows, worker=worker)
    await age(stores, entries, idle=idle, worker=worker)
    return entries


async def age(stores: Night, entries: tuple[Entry, ...], *, idle: timedelta, worker: str = WORKER) -> None:
    """Make these entries idle for so long."""
    for entry in entries:
        await stores.transit.redis.xclaim(
            stores.keys().lane(entry.place.lane),
            "senders",
            worker,
            min_idle_time=0,
            message_ids=[entry.place.entry],
            idle=idle // timedelta(milliseconds=1),
            justid=True,
        )


async def registered(stores: Night, worker: str, *, silent: timedelta) -> None:
    """A worker of the record that was last heard of so long ago."""
    await stores.sql(
        "INSERT INTO worker (id, host, pid, heartbeat_at) VALUES (%(id)s, 'h', 1, now() - %(silent)s)",
        id=worker,
        silent=silent,
    )


async def ended(stores: Night) -> list[object]:
    """The workers whose record is closed."""
    return [
        row[0] for row in await stores.sql("SELECT id FROM worker WHERE ended_at IS NOT NULL ORDER BY id")
    ]


async def step(takeover: Takeover) -> int:
    """One step of the living worker."""
    return await takeover.step(worker=ME, generation=1)


async def test_the_dead_ones_entries_are_unknown(stores: Night, takeover: Takeover) -> None:
    """Each becomes one attempt that nobody can vouch for, waits as any retry, and is flagged for the next send."""
    await left_by(stores, 2, idle=LONG)
    assert await step(takeover) == 2
    await stores.recorder.step()
    assert (
        await stores.sql(
            "SELECT outcome, reason, may_have_arrived, sent_at, worker, number FROM delivery_log ORDER BY event_id"
        )
        == [("unknown", WORKER_DIED, True, None, ME, 1)] * 2
    )
    assert set((await stores.statuses()).values()) == {"retrying"}
    now = await gauge(stores.transit, stores.keys())
    assert (now.pending, now.batch) == (0, 2)
    (delay,) = now.delays
    copies = cast("list[Raw]", await stores.transit.redis.xrange(stores.keys().delay(delay.seconds)))
    assert [fields[b"p"] for _, fields in copies] == [b"1", b"1"]
    assert await step(takeover) == 0


async def test_the_living_are_left_alone(stores: Night, takeover: Takeover) -> None:
    """A lease protects, however long a send takes."""
    await leases.acquire(stores.transit, WORKER)
    await left_by(stores, 2, idle=LONG)
    assert await step(takeover) == 0
    assert (await gauge(stores.transit, stores.keys())).pending == 2


async def test_a_send_that_may_still_end_is_waited_for(stores: Night, takeover: Takeover) -> None:
    """Nothing is taken over before a request that just left would have timed out."""
    entries = await left_by(stores, 1, idle=stores.partners["AB"].timeout)
    assert await step(takeover) == 0
    await age(stores, entries, idle=stores.partners["AB"].timeout + timedelta(seconds=1))
    assert await step(takeover) == 1


async def test_looking_does_not_keep_the_dead_young(stores: Night, takeover: Takeover) -> None:
    """However often somebody looks at a silent worker, its entries grow old and are taken over."""
    idle = stores.partners["AB"].timeout
    (entry,) = await left_by(stores, 1, idle=idle)
    await registered(stores, WORKER, silent=LONG)
    assert await step(takeover) == 0
    (pending,) = await stores.transit.redis.xpending_range(
        stores.keys().lane(entry.place.lane), "senders", "-", "+", 10
    )
    assert int(pending["time_since_delivered"]) >= idle // timedelta(milliseconds=1)


async def test_the_record_of_the_dead_is_closed_last(stores: Night, takeover: Takeover) -> None:
    """Only when nothing is in its hand any more; a silent worker with a lease is not dead."""
    entries = await left_by(stores, 1, idle=timedelta(seconds=1))
    await registered(stores, WORKER, silent=LONG)
    await registered(stores, "slow", silent=LONG)
    await registered(stores, "fresh", silent=timedelta(seconds=5))
    await leases.acquire(stores.transit, "slow")
    await step(takeover)
    assert await ended(stores) == []
    await age(stores, entries, idle=LONG)
    await step(takeover)
    assert await ended(stores) == [], "its end is in Redis alone"
    await stores.recorder.step()
    await step(takeover)
    assert await ended(stores) == [WORKER]


async def test_a_takeover_that_redis_loses_leaves_a_suspect(stores: Night, takeover: Takeover) -> None:
    """What a dead worker may have sent is flagged when it is sent again, also where nobody can hand its end in."""
    await left_by(stores, 1, idle=LONG)
    await registered(stores, WORKER, silent=LONG)
    assert await step(takeover) == 1
    redis = stores.transit.redis
    for key in [key async for key in redis.scan_iter(match=f"{stores.transit.keys.prefix}:*", count=1000)]:
        await redis.delete(key)
    await Recovery(stores.pool, stores.transit, stores.partners, stores.recorder, wait=asyncio.sleep).step()
    assert await stores.sql("SELECT status::text, possible_duplicate FROM delivery") == [("pending", True)]


async def test_others_that_go_on_do_not_keep_a_record_open(stores: Night, takeover: Takeover) -> None:
    """What was there to record when the dead had nothing left is what counts, not what is settled since."""
    await left_by(stores, 1, idle=LONG)
    await registered(stores, WORKER, silent=LONG)
    await step(takeover)
    await stores.recorder.step()
    (other,) = await left_by(stores, 1, idle=timedelta(0), worker=ME)
    await stores.settle(settlement(other, attempt(other, State.SUCCEEDED)))
    await step(takeover)
    assert await ended(stores) == [WORKER]


async def test_an_emptied_redis_closes_no_record(stores: Night, takeover: Takeover) -> None:
    """Nothing is pending there any more, of what a dead worker may have sent: recovery must still suspect it."""
    await left_by(stores, 1, idle=LONG)
    await registered(stores, WORKER, silent=LONG)
    redis = stores.transit.redis
    for key in [key async for key in redis.scan_iter(match=f"{stores.transit.keys.prefix}:*", count=1000)]:
        await redis.delete(key)
    with pytest.raises(StaleGeneration):
        await step(takeover)
    assert await ended(stores) == []


async def test_what_the_reaper_took_and_did_not_settle(stores: Night, takeover: Takeover) -> None:
    """A worker that dies while it takes over leaves nothing behind: the next one does it."""
    await left_by(stores, 1, idle=LONG)
    (claimed,) = await leases.claim_from_dead(
        stores.transit, stores.keys(), generation=1, reaper="third", min_idle=LONG / 2, limit=10
    )
    await registered(stores, "third", silent=LONG)
    assert await step(takeover) == 0
    assert await ended(stores) == [], "it has something in hand as a reaper"
    await age(stores, (claimed,), idle=LONG, worker=leases.reaper_of("third"))
    assert await step(takeover) == 1
    await stores.recorder.step()
    await step(takeover)
    assert await ended(stores) == ["third"]


async def test_a_late_outcome_replaces_the_unknown(stores: Night, takeover: Takeover) -> None:
    """The worker was only slow: what it saw itself is what the log shows, and the success is not sent again."""
    (entry,) = await left_by(stores, 1, idle=LONG)
    await step(takeover)
    await stores.recorder.step()
    settled = await stores.settle(settlement(entry, attempt(entry, State.SUCCEEDED, created_at=TODAY)))
    assert settled.late == (True,)
    await stores.recorder.step()
    assert await stores.sql("SELECT outcome, reason, late FROM delivery_log") == [
        ("succeeded", "as told", True)
    ]
    assert list((await stores.statuses()).values()) == ["succeeded"]
    assert (await gauge(stores.transit, stores.keys())).batch == 0


async def test_what_somebody_claimed_and_has_not_settled(stores: Night, takeover: Takeover) -> None:
    """While another worker is taking over, the dead one's record stays open: Redis may still lose the entry."""
    await registered(stores, WORKER, silent=LONG)
    (entry,) = await left_by(stores, 1, idle=LONG)
    await age(stores, (entry,), idle=timedelta(0), worker=leases.reaper_of("worker-3"))
    for _ in range(3):
        assert await step(takeover) == 0
    assert await ended(stores) == []
