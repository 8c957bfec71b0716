"""The feeder on real servers: every pending row reaches its lane once, in order, between the marks."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from datetime import date, timedelta
from decimal import Decimal

import pytest

from pipelines.feed import Feeder
from pipelines.route import Route
from streams import gauges, lanes
from streams.delivery import State
from streams.envelope import decode
from streams.errors import StaleGeneration
from streams.inbound import make_groups
from streams.keys import batch_lane, returns_lane
from streams.marks import Marks
from streams.scripts import Place
from tests.pipelines.live import Live, event, live
from tests.pipelines.night import NOW, Night, attempt, night, settlement


@pytest.fixture
async def stores(database_url: str, redis_url: str, key_prefix: str) -> AsyncIterator[Night]:
    """Two partners in generation 1, marks 50 and 20."""
    async with night(database_url, redis_url, key_prefix, high=50, low=20) as found:
        yield found


async def lane_ids(stores: Night, lane: str, name: str = "AB") -> list[str]:
    """Entry ids of a lane in their order."""
    entries = await stores.transit.redis.xrange(stores.keys(name).lane(lane))
    return [entry.decode() for entry, _ in entries]


async def drained(stores: Night, generation: int = 1, name: str = "AB") -> list[str]:
    """Feed, take and settle until nothing is left; the deliveries in the order in which they were taken."""
    taken: list[str] = []
    while True:
        fed = await stores.feeder.step(generation)
        entries = await stores.take(1000, generation=generation, name=name)
        if not fed and not entries:
            return taken
        for entry in entries:
            taken.append(entry.delivery)
            done = attempt(entry, State.SUCCEEDED, generation=generation, name=name)
            await stores.settle(settlement(entry, done), generation=generation, name=name)


async def test_rows_arrive_in_order_with_their_row_number(stores: Night) -> None:
    """A batch's stream holds its rows as 1-<row number>, each with what is sent, byte for byte."""
    batch = await stores.release(3)
    assert await stores.feeder.step(1) == 3
    assert await lane_ids(stores, batch_lane(batch)) == ["1-1", "1-2", "1-3"]
    second = decode((await stores.take(3))[1].envelope)
    assert (second.event_id, second.payload, second.amount, second.currency) == (
        f"{batch}:2",
        b'{"n":2}',
        Decimal("2.00"),
        "CZK",
    )
    assert (second.created_at, second.business_date, second.batch_id) == (NOW, date(2026, 3, 2), batch)


async def test_complete_is_noted_and_not_fed_again(stores: Night) -> None:
    """When every row was fed the batch says so for this generation, and further steps feed nothing."""
    await stores.release(3)
    await stores.feeder.step(1)
    assert await stores.sql("SELECT fed_upto, fed_complete, finished FROM batch_partner") == [(3, 1, False)]
    assert await stores.feeder.step(1) == 0


async def test_marks_are_honoured(stores: Night) -> None:
    """Feeding stops at the high mark and goes on only when the low mark is reached."""
    await stores.release(200)
    assert await stores.feeder.step(1) == 50
    assert await stores.feeder.step(1) == 0
    for entry in await stores.take(29):
        await stores.settle(settlement(entry, attempt(entry, State.SUCCEEDED)))
    assert await stores.feeder.step(1) == 0, "21 are left, above the low mark"
    for entry in await stores.take(1):
        await stores.settle(settlement(entry, attempt(entry, State.SUCCEEDED)))
    assert await stores.feeder.step(1) == 30


async def test_every_row_is_fed_once_over_many_steps(stores: Night) -> None:
    """A batch larger than the marks goes through whole, in its order."""
    batch = await stores.release(333)
    assert await drained(stores) == [f"payment-orders:{batch}:{n}" for n in range(1, 334)]


async def test_older_batches_first_and_every_partner(stores: Night) -> None:
    """A partner's older batch is fed before its newer one; another partner's full lanes hinder nobody."""
    old = await stores.release(40)
    new = await stores.release(40)
    other = await stores.release(40, "CD")
    assert await stores.feeder.step(1) == 90
    assert len(await lane_ids(stores, batch_lane(old))) == 40
    assert len(await lane_ids(stores, batch_lane(new))) == 10
    assert len(await lane_ids(stores, batch_lane(other), "CD")) == 40


async def test_two_feeders_feed_each_row_once(stores: Night) -> None:
    """Feeders at the same time share the work and never a row."""
    batch = await stores.release(50)
    twin = Feeder(stores.pool, stores.transit, stores.partners, high=50, low=20)
    fed = await asyncio.gather(*(feeder.step(1) for feeder in (stores.feeder, twin, stores.feeder, twin)))
    assert sum(fed) == 50
    assert await lane_ids(stores, batch_lane(batch)) == [f"1-{n}" for n in range(1, 51)]


async def test_only_released_batches_and_pending_rows(stores: Night) -> None:
    """Rows of a batch that is not released wait; rows that are no longer pending are left out."""
    held = await stores.release(3)
    batch = await stores.release(5)
    await stores.sql("UPDATE batch SET state = 'held' WHERE id = %(id)s", id=held)
    await stores.sql(
        "UPDATE delivery SET status = 'cancelled' WHERE batch_id = %(id)s AND row_number IN (2, 5)", id=batch
    )
    assert await stores.feeder.step(1) == 3
    assert await lane_ids(stores, batch_lane(batch)) == ["1-1", "1-3", "1-4"]
    assert await lanes.last_id(stores.transit, stores.keys(), batch_lane(held)) == "0-0"


async def test_a_new_generation_feeds_only_what_is_left(stores: Night) -> None:
    """After a recovery the rows that are still pending are fed again, the recorded ones are not."""
    batch = await stores.release(6)
    await stores.feeder.step(1)
    for entry in await stores.take(4):
        await stores.settle(settlement(entry, attempt(entry, State.SUCCEEDED)))
    await stores.recorder.step()
    await stores.open(2)
    assert await stores.feeder.step(2) == 2
    assert await lane_ids(stores, batch_lane(batch)) == ["1-5", "1-6"]


async def test_a_batch_without_pending_rows_is_never_looked_at_again(stores: Night) -> None:
    """A recovery that finds nothing pending in a batch notes that for all later ones."""
    await stores.release(2)
    await drained(stores)
    await stores.recorder.step()
    await stores.open(2)
    assert await stores.feeder.step(2) == 0
    assert await stores.sql("SELECT finished FROM batch_partner") == [(True,)]


async def test_stale_generation_is_told(stores: Night) -> None:
    """A feeder of an older generation changes nothing in Redis and says so."""
    batch = await stores.release(2)
    await stores.open(2)
    with pytest.raises(StaleGeneration):
        await stores.feeder.step(1)
    assert await lanes.last_id(stores.transit, stores.keys(), batch_lane(batch)) == "0-0"


async def test_nothing_is_fed_while_recovery_collects(stores: Night) -> None:
    """A closed pace refuses rows; they are fed when it opens."""
    await stores.release(2)
    await stores.close(2)
    assert await stores.feeder.step(2) == 0
    await stores.open(2)
    assert await stores.feeder.step(2) == 2


@pytest.mark.parametrize("closed", [True, False], ids=["fenced", "not yet fenced"])
async def test_a_lane_that_recovery_will_drop_does_not_count(stores: Night, *, closed: bool) -> None:
    """What an older generation fed completely is fed again after the drop, however early a feeder looked."""
    batch = await stores.release(3)
    await stores.feeder.step(1)
    if closed:
        await stores.close(2)
        assert await stores.feeder.step(2) == 0
    else:
        await stores.sql("UPDATE generation SET number = 2, state = 'recovering'")
        with pytest.raises(StaleGeneration):
            await stores.feeder.step(2)
    await stores.open(2)
    assert await stores.feeder.step(2) == 3
    assert await lane_ids(stores, batch_lane(batch)) == ["1-1", "1-2", "1-3"]


CRASH = """
import asyncio, sys
from tests.pipelines.night import partner
from pipelines.feed import Feeder
from sinks.pool import open_pool
from streams.transit import Transit

async def main() -> None:
    pool = await open_pool(sys.argv[1], name="crash", connections=3)
    transit = Transit.open(sys.argv[2], sys.argv[3])
    await Feeder(pool, transit, {"AB": partner("AB")}, high=50, low=20).step(1)

asyncio.run(main())
"""


@pytest.mark.parametrize("failpoint", ["feed-after-upto", "feed-after-xadd"])
async def test_killed_between_two_stores(
    stores: Night, failpoint: str, database_url: str, redis_url: str, key_prefix: str
) -> None:
    """A feeder killed after either half of the hand-over loses nothing and feeds nothing twice."""
    batch = await stores.release(30)
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", CRASH, database_url, redis_url, key_prefix),
        env={**os.environ, "MADEIRA_FAILPOINT": failpoint, "PYTHONPATH": os.pathsep.join(sys.path)},
        stdout=subprocess.DEVNULL,
    )
    assert await process.wait() == -signal.SIGKILL
    assert await stores.sql("SELECT fed_upto FROM batch_partner") == [(30,)]
    assert await drained(stores) == [f"payment-orders:{batch}:{n}" for n in range(1, 31)]


async def test_sweep_feeds_due_retries_of_older_generations_once(stores: Night) -> None:
    """A retry whose delay stream is gone returns when it is due, with its counts, and only once."""
    batch = await stores.release(2)
    await stores.feeder.step(1)
    first, second = await stores.take(2)
    await stores.settle(
        settlement(first, attempt(first, State.RETRYING, number=3, reason="later")),
        settlement(second, attempt(second, State.SUCCEEDED)),
    )
    await stores.recorder.step()
    due = NOW + timedelta(seconds=60)
    assert await stores.feeder.sweep(1, due) == 0, "it waits in a delay stream of this generation"
    await stores.open(2)
    assert await stores.feeder.sweep(2, due - timedelta(milliseconds=1)) == 0
    assert await stores.feeder.sweep(2, due) == 1
    assert await stores.feeder.sweep(2, due) == 0
    [entry] = await stores.take(5, generation=2)
    assert (entry.place.lane, entry.delivery, entry.attempts) == (returns_lane(batch), first.delivery, 3)


async def test_sweep_again_after_a_crash_feeds_nothing_twice(stores: Night) -> None:
    """A sweep that died before it noted what it fed finds, the next time, that Redis has it."""
    batch = await stores.release(1)
    await stores.feeder.step(1)
    [entry] = await stores.take(1)
    await stores.settle(settlement(entry, attempt(entry, State.RETRYING)))
    await stores.recorder.step()
    await stores.open(2)
    due = NOW + timedelta(seconds=60)
    await stores.feeder.sweep(2, due)
    await stores.sql("UPDATE delivery SET fed_generation = 1")
    assert await stores.feeder.sweep(2, due) == 0
    assert len(await lane_ids(stores, returns_lane(batch))) == 1
    assert await stores.sql("SELECT fed_generation FROM delivery") == [(2,)]


async def test_what_may_have_arrived_is_fed_as_a_possible_duplicate(stores: Night) -> None:
    """A send that follows one that may have arrived says so, also when only PostgreSQL remembers."""
    await stores.release(1)
    await stores.feeder.step(1)
    [entry] = await stores.take(1)
    arrived = attempt(entry, State.RETRYING)
    unknown = settlement(entry, arrived)
    await stores.settle(unknown)
    await stores.recorder.step()
    await stores.sql("UPDATE delivery_log SET may_have_arrived = true")
    await stores.open(2)
    await stores.feeder.sweep(2, NOW + timedelta(seconds=60))
    [again] = await stores.take(1, generation=2)
    assert again.possible_duplicate


async def test_the_counter_is_what_the_lanes_hold(stores: Night) -> None:
    """Feeding counts each row once, skipped ones not at all."""
    await stores.release(5)
    await stores.transit.redis.hset(stores.keys().open, "payment-orders:1:2", "live/0-1")
    assert await stores.feeder.step(1) == 4
    assert (await gauges.gauge(stores.transit, stores.keys())).batch == 4
    assert await stores.sql("SELECT fed_complete FROM batch_partner") == [(1,)]


async def test_lanes_of_batches_that_are_over_are_retired(stores: Night) -> None:
    """Only once the record has every end of an emptied batch; what waits or is in hand keeps its lanes."""
    over, waiting, held = await stores.release(2), await stores.release(2), await stores.release(1)
    await stores.feeder.step(1)
    entries = await stores.take(5)
    for entry in entries:
        if entry.place.lane == batch_lane(over):
            await stores.settle(settlement(entry, attempt(entry, State.DEAD)))
        elif entry.place == Place(batch_lane(waiting), "1-1"):
            await stores.settle(settlement(entry, attempt(entry, State.SUCCEEDED)))
        elif entry.place.lane == batch_lane(waiting):
            await stores.settle(settlement(entry, attempt(entry, State.RETRYING)))
    assert await stores.feeder.retire(1) == 0, "nothing is recorded"
    await stores.recorder.step()
    assert await stores.feeder.retire(1) == 1
    locks = await stores.sql("SELECT name FROM row_lock WHERE name LIKE 'feed:%%' ORDER BY name")
    assert locks == [(f"feed:{batch}:AB",) for batch in (waiting, held)]
    assert await lanes.names(stores.transit, stores.keys()) == (batch_lane(waiting), batch_lane(held))
    assert await stores.feeder.retire(1) == 0
    assert await stores.feeder.step(1) == 0, "and nothing of it is fed again"


async def test_a_lane_that_is_not_yet_fed_to_its_end_is_kept(stores: Night) -> None:
    """Sending that is faster than feeding empties a lane in the middle of its batch."""
    batch = await stores.release(60)
    await stores.feeder.step(1)
    for entry in await stores.take(50):
        await stores.settle(settlement(entry, attempt(entry, State.SUCCEEDED)))
    await stores.recorder.step()
    await stores.sql("UPDATE delivery SET status = 'succeeded'")  # not even where the record claims it
    assert await stores.feeder.retire(1) == 0
    assert await lanes.last_id(stores.transit, stores.keys(), batch_lane(batch)) == "1-50"


@pytest.fixture
async def post(database_url: str, redis_url: str, key_prefix: str) -> AsyncIterator[Live]:
    """Live events for AB and CD; a partner's live marks are 5 and 2."""
    async with night(database_url, redis_url, key_prefix, live=Marks(high=5, low=2)) as stores:
        await make_groups(stores.transit)
        yield live(stores)


async def wait_in_the_record(post: Live, *names: str, key: str = "AB") -> None:
    """Routed while Redis was away: nothing of it was fed. The first is the oldest."""
    events = [event(name, key) for name in names]
    await post.record(*events)
    await post.router.sweep(older_than=timedelta(0))
    for place, name in enumerate(names):
        await post.night.sql(
            "UPDATE delivery SET due_at = %(at)s FROM event WHERE event.id = event AND event_id = %(name)s",
            at=NOW + timedelta(seconds=place),
            name=name,
        )


async def succeed(post: Live, limit: int, generation: int = 1) -> list[str]:
    """A worker's turn; the ids that it sent."""
    entries = await post.take(limit, generation=generation)
    for entry in entries:
        done = attempt(entry, State.SUCCEEDED, generation=generation)
        await post.night.settle(settlement(entry, done), generation=generation)
    return [entry.delivery.partition(":")[2] for entry in entries]


async def test_live_deliveries_wait_in_postgresql_above_their_mark(post: Live) -> None:
    """The oldest are fed up to the high mark, more at the low one; another partner has marks of its own."""
    names = [f"{n:02}" for n in range(12)]
    await wait_in_the_record(post, *names)
    await wait_in_the_record(post, "c", key="CD")
    soon = NOW + timedelta(hours=1)
    assert await post.night.feeder.sweep(1, soon) == 6
    assert (await post.lane(), await post.lane("CD")) == (names[:5], ["c"])
    assert await post.night.feeder.sweep(1, soon) == 0
    assert await succeed(post, 2) == names[:2]
    assert await post.night.feeder.sweep(1, soon) == 0, "three are left, above the low mark"
    assert await succeed(post, 1) == names[2:3]
    assert await post.night.feeder.sweep(1, soon) == 3
    assert await post.lane() == names[3:8]


async def test_a_batch_leaves_live_its_room(post: Live) -> None:
    """Live deliveries are counted apart from the batch's, and both are within their own marks."""
    await post.night.release(100)
    assert await post.night.feeder.step(1) == 100
    await wait_in_the_record(post, *"abcdefg")
    assert await post.night.feeder.sweep(1, NOW + timedelta(hours=1)) == 5
    found = await gauges.gauge(post.night.transit, post.night.keys())
    assert (found.batch, found.live) == (100, 5)


async def test_a_live_retry_of_an_older_generation_is_fed_when_due(post: Live) -> None:
    """It comes back into the live lane with its counts, and what succeeded is never looked at again."""
    await post.accept(event("1"), event("2"))
    await post.routed()
    one, two = await post.take(2)
    await post.night.settle(
        settlement(one, attempt(one, State.RETRYING, number=3)),
        settlement(two, attempt(two, State.SUCCEEDED)),
    )
    await post.night.recorder.step()
    assert await post.night.sql("SELECT count(*) FROM delivery WHERE due_at IS NULL") == [(1,)]
    await post.night.open(2)
    due = NOW + timedelta(seconds=60)
    assert await post.night.feeder.sweep(2, due - timedelta(milliseconds=1)) == 0
    assert await post.night.feeder.sweep(2, due) == 1
    [again] = await post.take(5, generation=2)
    assert (again.place.lane, again.delivery, again.attempts) == ("live", one.delivery, 3)


async def test_a_reshaped_delivery_is_fed_as_it_was_routed(post: Live) -> None:
    """Body and address were fixed by the route of that time, also when only PostgreSQL has them."""
    route = Route("r", ("AB",), body="n", target_uri="https://bank.example/{event_id}")
    post.router.adopt([route])
    await post.record(event("1"))
    await post.router.sweep(older_than=timedelta(0))
    post.router.adopt([])
    await post.night.feeder.sweep(1, event("1").created_at)
    [entry] = await post.take()
    assert (decode(entry.envelope).payload, decode(entry.envelope).target_uri) == (
        b"1.0",
        "https://bank.example/1",
    )


LIVE_CRASH = """
import asyncio, sys
from datetime import UTC, datetime
from tests.pipelines.night import partner
from pipelines.feed import Feeder
from sinks.pool import open_pool
from streams.transit import Transit

async def main() -> None:
    pool = await open_pool(sys.argv[1], name="crash", connections=3)
    transit = Transit.open(sys.argv[2], sys.argv[3])
    await Feeder(pool, transit, {"AB": partner("AB")}).sweep(1, datetime.now(UTC))

asyncio.run(main())
"""


async def test_a_sweep_that_dies_loses_nothing(
    post: Live, database_url: str, redis_url: str, key_prefix: str
) -> None:
    """Handed over and not noted: perhaps in Redis, says the record. The next sweep finds out; nothing is twice."""
    await wait_in_the_record(post, "1", "2")
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", LIVE_CRASH, database_url, redis_url, key_prefix),
        env={**os.environ, "MADEIRA_FAILPOINT": "sweep-after-feed", "PYTHONPATH": os.pathsep.join(sys.path)},
        stdout=subprocess.DEVNULL,
    )
    assert await process.wait() == -signal.SIGKILL
    assert [row[3] for row in await post.deliveries()] == [-1, -1]
    assert await post.night.feeder.sweep(1, event("1").created_at) == 0
    assert [row[3] for row in await post.deliveries()] == [1, 1]
    assert await post.lane() == ["1", "2"]


async def test_a_partner_that_comes_or_goes_while_the_feeder_works(post: Live) -> None:
    """The shared mapping is looked at anew at each step: who left is not fed, who came is."""
    await wait_in_the_record(post, "1")
    gone = post.night.partners.pop("AB")
    assert await post.night.feeder.sweep(1, event("1").created_at) == 0
    post.night.partners["AB"] = gone
    assert await post.night.feeder.sweep(1, event("1").created_at) == 1
