"""Cancel on real servers: one end for each delivery, whatever was being done with it, and nothing sent afterwards."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta

import pytest

from pipelines.cancel import RESOLVE_FIRST, Cancelled
from pipelines.dead_letters import Filter
from pipelines.feed import CHUNK
from pipelines.replay import CANCELLING
from pipelines.router import Router
from streams.delivery import Kind, State
from streams.gauges import gauge, now_us
from streams.lanes import adopt
from streams.moves import Feed
from tests.pipelines.dead import cancel, dead, end, fed, replay, taken
from tests.pipelines.live import TO_KEY, Live, event
from tests.pipelines.night import JOB, NOW, WORKER, Night, attempt, night, settlement
from tests.pipelines.test_replay import TODAY

ALL = Filter()
NO_PATIENCE = timedelta(0)
PATIENCE = timedelta(seconds=30)

CRASHER = """
import asyncio, sys
from pipelines.cancel import Cancel
from pipelines.dead_letters import Filter
from sinks.pool import open_pool
from streams.transit import Transit
from tests.pipelines.night import partner

async def crash(database, redis, prefix):
    pool, transit = await open_pool(database, name="crasher"), Transit.open(redis, prefix)
    cancel = Cancel(pool, transit, {"AB": partner("AB")})
    await cancel.cancel(Filter(), dead=False, who="ann", why="")
    await cancel.step(1)

asyncio.run(crash(*sys.argv[1:]))
"""


@pytest.fixture
async def tonight(database_url: str, redis_url: str, key_prefix: str) -> AsyncIterator[Night]:
    """A night on which nothing has happened yet."""
    async with night(database_url, redis_url, key_prefix) as found:
        yield found


async def no_wait(_: float) -> None:
    """Where nobody else has to do anything."""
    await asyncio.sleep(0)


async def cancelled(night: Night, which: Filter = ALL, patience: timedelta = NO_PATIENCE) -> Cancelled:
    """What `madeira cancel` does, to its end."""
    done = await cancel(night).cancel(which, dead=False, who="ann", why="wrong file")
    return await cancel(night).settled(done, night.recorder, patience=patience, wait=no_wait)


async def statuses(night: Night) -> list[tuple[object, ...]]:
    """Status, cause and event, in order."""
    return await night.sql(
        "SELECT d.status::text, d.cause FROM delivery d JOIN event e ON e.id = d.event ORDER BY e.id"
    )


async def assert_empty(night: Night) -> None:
    """Nothing is in transit, and the counters say so."""
    now = await gauge(night.transit, night.keys())
    assert (now.batch, now.live, now.pending) == (0, 0, 0)
    assert [lane.depth for lane in now.lanes] == [0] * len(now.lanes)
    assert not now.delays


async def test_what_waits_goes_from_lane_and_delay(tonight: Night) -> None:
    """Fresh rows, returns in a delay, rows that were never fed: all end at once, and no feed brings them back."""
    await tonight.release(5)
    await fed(tonight)
    first, second = await tonight.take(2)
    await end(tonight, [first, second], State.RETRYING)
    await tonight.release(2)
    done = await cancelled(tonight)
    assert (done.count, done.left, done.became) == (7, (), ())
    assert await statuses(tonight) == [("cancelled", None)] * 7
    await assert_empty(tonight)
    assert await fed(tonight) == 0
    assert await tonight.feeder.sweep(1, datetime.now(UTC)) == 0
    assert await taken(tonight) == []
    [(action, why, count)] = await tonight.sql("SELECT action, why, (detail->>'count')::int FROM audit")
    assert (action, why, count) == ("cancel", "wrong file", 7)


async def test_a_feeder_that_read_before_adds_nothing_after(tonight: Night) -> None:
    """Redis keeps a mark for longer than any reading counts, and then clears it up."""
    batch = await tonight.release(1)
    read = await now_us(tonight.transit.redis)
    await cancelled(tonight)
    late = await tonight.transit.scripts.feed(
        tonight.keys(), generation=1, lane=f"batch:{batch}", expect_last="0-0", read_at_us=read,
        rows=[Feed(entry="1-1", delivery=f"{JOB}:{batch}:1", envelope=b"")],
    )  # fmt: skip
    assert (late.fed, late.skipped) == (0, 1)  # type: ignore[union-attr] # not refused
    assert await taken(tonight) == []
    while await tonight.recorder.step():
        pass
    await tonight.recorder.forget(NOW)
    assert await tonight.recorder.forget(NOW + timedelta(seconds=60)) == 1
    assert await tonight.open_deliveries() == {}


async def test_only_what_redis_may_have_is_told(database_url: str, redis_url: str, key_prefix: str) -> None:
    """Rows far behind what was fed need no mark each: the record alone keeps them from being fed."""
    async with night(database_url, redis_url, key_prefix, high=10, low=5) as tonight:
        await tonight.release(1_000)
        assert await tonight.feeder.step(1) == 10
        await cancelled(tonight)
        assert len(await tonight.open_deliveries()) == 10 + CHUNK
        await assert_empty(tonight)


@pytest.mark.parametrize(
    ("state", "outcome", "becomes"),
    [
        (State.RETRYING, Kind.RETRY, ("cancelled", None)),
        (State.RETRYING, Kind.UNKNOWN, ("dead", "unknown_confirm_first")),
        (State.DEAD, Kind.DEAD, ("cancelled", None)),
        (State.DEAD, Kind.UNKNOWN, ("dead", "unknown_confirm_first")),
        (State.SUCCEEDED, Kind.SUCCEEDED, ("succeeded", None)),
    ],
)
async def test_what_is_in_a_hand_ends_by_its_answer(
    state: State, outcome: Kind, becomes: tuple[str, str | None], tonight: Night
) -> None:
    """Cancelled if nothing arrived, unknown if it may have, delivered if it was; and never a second send."""
    await tonight.release(1)
    await fed(tonight)
    [entry] = await taken(tonight)
    done = await cancelled(tonight)
    assert done.left == (("AB", 1),)
    assert await statuses(tonight) == [("cancelled", None)]
    await end(tonight, [entry], state, outcome=outcome)
    await tonight.transit.scripts.release(tonight.keys(), generation=1, limit=10)
    assert await taken(tonight) == []
    done = await cancel(tonight).settled(done, tonight.recorder, patience=PATIENCE, wait=no_wait)
    assert done.left == ()
    assert await statuses(tonight) == [becomes]
    assert [(became.status, became.key) for became in done.became] == (
        [] if becomes[0] == "cancelled" else [(becomes[0], entry.delivery)]
    )
    await assert_empty(tonight)
    assert await taken(tonight) == []


async def test_the_command_returns_when_the_hand_is_empty(tonight: Night) -> None:
    """It waits for the answer of a send that is under way, and tells of what was delivered after all."""
    await tonight.release(1)
    await fed(tonight)
    entries = await taken(tonight)

    async def answers(_: float) -> None:
        await end(tonight, entries, State.SUCCEEDED)
        entries.clear()

    done = await cancel(tonight).cancel(ALL, dead=False, who="ann", why="")
    done = await cancel(tonight).settled(done, tonight.recorder, patience=PATIENCE, wait=answers)
    assert [(became.status, became.amount_minor) for became in done.became] == [("succeeded", 100)]


async def test_what_may_have_arrived_before_is_not_called_cancelled(tonight: Night) -> None:
    """A retry after a lost answer, waiting: taken out of the delay, and unknown until somebody asks."""
    await tonight.release(1)
    await fed(tonight)
    await end(tonight, await taken(tonight), State.RETRYING, outcome=Kind.UNKNOWN)
    await cancelled(tonight)
    assert await statuses(tonight) == [("dead", "unknown_confirm_first")]
    await assert_empty(tonight)
    # And it can be replayed at once, though Redis still has the mark of the cancellation.
    await replay(tonight).replay(ALL, today=TODAY, who="ann")
    assert await fed(tonight) == 1
    [entry] = await taken(tonight)
    assert entry.possible_duplicate


async def test_an_unsent_entry_in_a_hand_is_given_back_or_dropped(tonight: Night) -> None:
    """A worker that leaves, or asks for the slot of what it holds, hands nothing on that was cancelled."""
    await tonight.release(3)
    await fed(tonight)
    entries = await taken(tonight)
    await cancelled(tonight)
    assert (
        await tonight.transit.scripts.give_back(tonight.keys(), generation=1, places=[entries[0].place]) == 1
    )
    take = await tonight.transit.scripts.take(
        tonight.keys(), generation=1, worker=WORKER, limit=10, horizon=timedelta(seconds=2),
        held=[entry.place for entry in entries[1:]],
    )  # fmt: skip
    assert take.slots == ()
    assert await adopt(tonight.transit, tonight.keys(), worker=WORKER) == ()
    await cancel(tonight).step(1)
    assert await tonight.sql("SELECT count(*) FROM cancelled WHERE NOT told") == [(0,)]
    await assert_empty(tonight)


async def test_a_late_success_is_a_success(tonight: Night) -> None:
    """A hand that was given up for dead reports after all: delivered, as everybody must know."""
    await tonight.release(1)
    await fed(tonight)
    [entry] = await taken(tonight)
    lost = attempt(entry, State.RETRYING, outcome=Kind.UNKNOWN, reason="worker died")
    await tonight.settle(settlement(entry, lost))
    await cancelled(tonight)
    await tonight.settle(settlement(entry, attempt(entry, State.SUCCEEDED)))
    while await tonight.recorder.step():
        pass
    assert await statuses(tonight) == [("succeeded", None)]
    await assert_empty(tonight)


@pytest.mark.parametrize("point", ["cancel-before-commit", "cancel-after-commit", "cancel-after-told"])
async def test_a_killed_command_is_finished_by_a_worker(
    point: str, tonight: Night, database_url: str, redis_url: str, key_prefix: str
) -> None:
    """Nothing of it, or all of it: what the record has as cancelled, a worker takes out of Redis."""
    await tonight.release(3)
    await fed(tonight)
    crashed = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-c", CRASHER, database_url, redis_url, key_prefix],
        env={**os.environ, "MADEIRA_FAILPOINT": point},
        check=False,
    )
    assert crashed.returncode == -signal.SIGKILL
    nothing = point == "cancel-before-commit"
    assert await cancel(tonight).step(1) == (0 if nothing else 3)
    assert len(await taken(tonight)) == (3 if nothing else 0)
    assert await tonight.sql("SELECT count(*) FROM audit") == [(int(not nothing),)]


async def test_in_a_recovery_it_takes_effect_with_the_next_generation(tonight: Night) -> None:
    """While Redis is closed nothing is told; the feed of the new generation skips what is cancelled."""
    await tonight.release(2)
    await fed(tonight)
    await tonight.close(2)
    done = await cancelled(tonight)
    assert done.left == (("AB", 2),)
    await tonight.open(3)
    assert await fed(tonight, 3) == 0
    assert await cancel(tonight).step(3) == 2
    assert await taken(tonight, generation=3) == []


async def test_live_deliveries_that_wait_anywhere(tonight: Night) -> None:
    """In their lane, and in PostgreSQL above the mark; what is routed later is another matter."""
    shop = Live(tonight, Router(tonight.pool, tonight.transit, tonight.partners, [TO_KEY]))
    await shop.accept(event("a"))
    await shop.routed()
    await tonight.sql(
        """WITH e AS (
               INSERT INTO event (source, event_id, event_type, body, body_sha256, trace_id, created_at)
               VALUES ('shop', 'b', 'payment', '', '', 't', now()) RETURNING id)
           INSERT INTO delivery (event, partner, due_at, updated_at) SELECT id, 'AB', now(), now() FROM e"""
    )
    await cancelled(tonight)
    assert await statuses(tonight) == [("cancelled", None)] * 2
    assert await tonight.feeder.sweep(1, datetime.now(UTC)) == 0
    await assert_empty(tonight)


async def test_dead_letters_are_cancelled_too_unless_they_may_have_arrived(tonight: Night) -> None:
    """Those stay dead and are named; `cause` is gone from the others, as metrics count by it."""
    await dead(tonight, 2)
    await dead(tonight, 1, outcome=Kind.UNKNOWN)
    done = await cancel(tonight).cancel(ALL, dead=True, who="ann", why="")
    assert [(each.left_out, each.count) for each in done.sums] == [("", 2), (RESOLVE_FIRST, 1)]
    assert await statuses(tonight) == [("cancelled", None)] * 2 + [("dead", "refused")]


async def test_a_dry_run_and_a_second_click_change_nothing(tonight: Night) -> None:
    """The first says what would be done, the second that there is nothing left."""
    await tonight.release(2)
    planned = await cancel(tonight).cancel(ALL, dead=False, who="ann", why="", dry_run=True)
    assert (planned.count, planned.audit) == (2, None)
    assert await statuses(tonight) == [("pending", None)] * 2
    await cancelled(tonight)
    again = await cancel(tonight).cancel(ALL, dead=False, who="ann", why="")
    assert (again.count, again.audit) == (0, None)


async def test_what_is_still_being_cancelled_is_not_replayed(tonight: Night) -> None:
    """Or the cancellation, told a moment later, would take the replay out of Redis."""
    await tonight.release(1)
    await fed(tonight)
    await end(tonight, await taken(tonight), State.RETRYING, outcome=Kind.UNKNOWN)
    await cancel(tonight).cancel(ALL, dead=False, who="ann", why="")
    done = await replay(tonight).replay(ALL, today=TODAY, who="bob")
    assert [(each.left_out, each.count) for each in done.sums] == [(CANCELLING, 1)]
    await cancel(tonight).step(1)
    assert (await replay(tonight).replay(ALL, today=TODAY, who="bob")).count == 1
