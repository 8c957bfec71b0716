"""Recovery on real servers: whatever happened to Redis, nothing is lost and what may be sent twice is flagged."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

import pytest

from pipelines.control import Control
from pipelines.feed import Feeder
from pipelines.record import Recorder
from pipelines.recover import Recovered, Recovery, read_generation
from sinks.pool import open_pool
from sinks.statement import statement
from streams.delivery import State
from streams.errors import StoreUnavailable
from streams.gauges import gauge, run_id
from streams.inbound import make_groups
from streams.keys import LIVE
from streams.scripts import Entry
from streams.transit import Transit
from tests.pipelines.live import Live, event, live
from tests.pipelines.night import WORKER, Night, attempt, partner, settlement

TODAY = datetime.now(UTC)
OLD = timedelta(seconds=60)
Wait = Callable[[float], Awaitable[None]]

CRASHER = """
import asyncio, sys
from pipelines.record import Recorder
from pipelines.recover import Recovery
from sinks.pool import open_pool
from streams.transit import Transit
from tests.pipelines.night import partner

async def crash(database, redis, prefix):
    partners = {name: partner(name) for name in ("AB", "CD")}
    pool, transit = await open_pool(database, name="crasher"), Transit.open(redis, prefix)
    await Recovery(pool, transit, partners, Recorder(pool, transit, partners), wait=asyncio.sleep).step()

asyncio.run(crash(*sys.argv[1:]))
"""


async def nobody(_: float) -> None:
    """Where there is nobody to wait for."""
    pytest.fail("recovery waits for somebody")


@dataclass(frozen=True, slots=True)
class Stage:
    """Both stores, as they are before anybody ever worked with them."""

    night: Night
    urls: tuple[str, str, str]

    def recovery(self, wait: Wait = nobody, *names: str) -> Recovery:
        """One process's recovery; `wait` is what happens while it waits."""
        night = self.night
        partners = {name: partner(name) for name in names} or night.partners
        recorder = Recorder(night.pool, night.transit, partners)
        return Recovery(night.pool, night.transit, partners, recorder, wait=wait)

    async def recover(self, wait: Wait = nobody) -> Recovered:
        """Recover, and say what was done."""
        done = await self.recovery(wait).step()
        assert done is not None
        return done

    async def number(self) -> int:
        """PostgreSQL's generation."""
        return (await read_generation(self.night.pool)).number

    async def hire(self, worker: str = WORKER, *, silent: timedelta = timedelta(0)) -> None:
        """A worker of the record, last heard of so long ago, that has handed in under the present generation."""
        await self.night.sql(
            """INSERT INTO worker (id, host, pid, generation, heartbeat_at)
               VALUES (%(id)s, 'h', 1, %(generation)s, now() - %(silent)s)""",
            id=worker,
            generation=await self.number(),
            silent=silent,
        )

    async def hand_in(self, worker: str = WORKER) -> None:
        """The worker says that it has nothing in hand under the present generation."""
        await self.night.sql(
            "UPDATE worker SET generation = %(n)s, heartbeat_at = now() WHERE id = %(id)s",
            n=await self.number(),
            id=worker,
        )

    async def order(self, rows: int) -> int:
        """A batch of so many rows for AB, fed."""
        batch = await self.night.release(rows, start=TODAY)
        await self.night.feeder.step(await self.number())
        return batch

    async def take(self, limit: int) -> tuple[Entry, ...]:
        """What a worker gets under the present generation."""
        return await self.night.take(limit, generation=await self.number())

    async def settle(self, entry: Entry, state: State, *, taken_in: int) -> None:
        """Hand in how the attempt ended that was begun in generation `taken_in`."""
        attempted = attempt(entry, state, generation=taken_in, created_at=TODAY)
        await self.night.settle(settlement(entry, attempted), generation=await self.number())

    async def flush(self) -> None:
        """All that Redis had below our prefix is gone; its run_id stays."""
        redis = self.night.transit.redis
        for key in [key async for key in redis.scan_iter(match=f"{self.urls[2]}:*", count=1000)]:
            await redis.delete(key)

    async def restarted(self) -> None:
        """Redis was started anew, as far as PostgreSQL knows."""
        await self.night.sql("UPDATE generation SET run_id = 'an earlier one'")

    async def flagged(self) -> list[object]:
        """Rows of AB that may have been sent."""
        rows = await self.night.sql(
            "SELECT row_number FROM delivery WHERE possible_duplicate ORDER BY batch_id, row_number"
        )
        return [row[0] for row in rows]

    def crash(self, failpoint: str) -> None:
        """A process that recovers and dies there."""
        done = subprocess.run(
            [sys.executable, "-c", CRASHER, *self.urls],
            env={**os.environ, "MADEIRA_FAILPOINT": failpoint, "PYTHONPATH": os.pathsep.join(sys.path)},
            timeout=60,
            check=False,
        )
        assert done.returncode == -signal.SIGKILL


@asynccontextmanager
async def stores(database_url: str, redis_url: str, key_prefix: str, **changes: int) -> AsyncIterator[Stage]:
    """Two partners, AB with the changes."""
    partners = {"AB": replace(partner("AB"), **changes), "CD": partner("CD")}  # type: ignore[arg-type]
    pool = await open_pool(database_url, name="test", connections=8)
    transit = Transit.open(redis_url, key_prefix)
    try:
        night = Night(
            pool, transit, partners, Recorder(pool, transit, partners), Feeder(pool, transit, partners)
        )
        yield Stage(night, (database_url, redis_url, key_prefix))
    finally:
        await pool.close()
        await transit.close()


@pytest.fixture
async def stage(database_url: str, redis_url: str, key_prefix: str) -> AsyncIterator[Stage]:
    """Two partners, recovered for the first time."""
    async with stores(database_url, redis_url, key_prefix) as found:
        await found.recover()
        yield found


async def test_first_start(database_url: str, redis_url: str, key_prefix: str) -> None:
    """An empty record and an empty Redis come to agree by the same way as ever, and then nothing is due."""
    async with stores(database_url, redis_url, key_prefix) as stage:
        done = await stage.recover()
        assert done == Recovered(generation=1, reason="first start", suspects=0, lost=())
        generation = await read_generation(stage.night.pool)
        assert (generation.recovering, generation.run_id) == (False, await run_id(stage.night.transit.redis))
        for name in ("AB", "CD"):
            found = await gauge(stage.night.transit, stage.night.keys(name))
            assert (found.generation, found.state, found.paused) == (1, "open", False)
        assert await stage.recovery().needed() is None
        assert await stage.recovery().step() is None
        assert await stage.number() == 1


async def test_a_new_partner(stage: Stage) -> None:
    """It is opened in the present generation, and what the others have in transit is left alone."""
    await stage.order(3)
    grown = stage.recovery(nobody, "AB", "CD", "EF")
    assert await grown.needed() == "new partner"
    assert await grown.step() is None
    assert await grown.needed() is None
    found = await gauge(stage.night.transit, stage.night.keys("EF"))
    assert (found.generation, found.state) == (1, "open")
    assert await stage.night.sql("SELECT generation FROM outcome_offset WHERE partner = 'EF'") == [(1,)]
    assert (await gauge(stage.night.transit, stage.night.keys())).batch == 3


async def test_an_introduction_that_was_not_committed(stage: Stage) -> None:
    """Redis was opened for a new partner, then the process died: the next makes it known, with its outcomes."""
    await stage.order(1)
    (entry,) = await stage.take(1)
    await stage.settle(entry, State.SUCCEEDED, taken_in=1)
    await stage.night.sql("DELETE FROM outcome_offset WHERE partner = 'AB'")
    assert await stage.recovery().step() is None
    assert await stage.recovery().needed() is None
    assert await stage.night.recorder.step() == 1


async def test_a_partner_that_comes_back(stage: Stage) -> None:
    """One that was left out during a recovery is new: what it had in transit then may have been sent."""
    await stage.order(2)
    await stage.restarted()
    await stage.recovery(nobody, "CD").step()
    assert await stage.number() == 2
    assert await stage.recovery().step() is None
    assert await stage.flagged() == [1, 2]
    await stage.night.feeder.step(2)
    assert [entry.possible_duplicate for entry in await stage.take(5)] == [True, True]


async def test_restart_with_everything_handed_in(stage: Stage) -> None:
    """A restart of Redis duplicates nothing and flags nothing: workers hand in, and the rest is fed again."""
    await stage.hire()
    batch = await stage.order(6)
    first, second, third = await stage.take(3)
    await stage.settle(first, State.SUCCEEDED, taken_in=1)
    await stage.restarted()

    async def handed_in(_: float) -> None:
        await stage.settle(second, State.SUCCEEDED, taken_in=1)
        await stage.settle(third, State.RETRYING, taken_in=1)
        await stage.hand_in()

    done = await stage.recover(handed_in)
    assert (done.generation, done.reason, done.suspects) == (2, "Redis was started anew", 0)
    assert await stage.flagged() == []
    assert [s for _, s in sorted((await stage.night.statuses()).items())] == [
        "succeeded",
        "succeeded",
        "retrying",
        *["pending"] * 3,
    ]
    await stage.night.feeder.step(2)
    again = await stage.take(10)
    assert [entry.place.entry for entry in again] == ["1-4", "1-5", "1-6"]
    assert {entry.place.lane for entry in again} == {f"batch:{batch}"}
    swept = await stage.night.feeder.sweep(2, datetime.now(UTC) + timedelta(days=1))
    (retried,) = await stage.take(10)
    assert (swept, retried.delivery, retried.attempts) == (1, third.delivery, 1)


async def test_everything_gone_and_everybody_handed_in(stage: Stage) -> None:
    """After a FLUSHALL, workers that say what they sent leave nothing to suspect."""
    await stage.hire()
    await stage.order(4)
    (entry,) = await stage.take(1)
    await stage.flush()

    async def handed_in(_: float) -> None:
        await stage.settle(entry, State.SUCCEEDED, taken_in=1)
        await stage.hand_in()

    done = await stage.recover(handed_in)
    assert (done.suspects, done.lost) == (0, ("AB", "CD"))
    assert await stage.flagged() == []
    await stage.night.feeder.step(2)
    assert len(await stage.take(10)) == 3


async def test_everything_gone_and_somebody_silent(stage: Stage) -> None:
    """After a FLUSHALL with a worker that says nothing, all that was fed may have been sent; the rest not."""
    await stage.hire(silent=OLD)
    await stage.order(3)
    await stage.night.release(2, start=TODAY)
    await stage.flush()
    done = await stage.recover()
    assert (done.suspects, done.reason) == (3, "pace of AB is missing or of another generation")
    assert await stage.flagged() == [1, 2, 3]
    await stage.night.feeder.step(2)
    assert [e.possible_duplicate for e in await stage.take(10)] == [True, True, True, False, False]
    assert await stage.night.sql("SELECT count(*) FROM worker WHERE ended_at IS NULL") == [(0,)]


async def test_keys_there_and_somebody_silent(database_url: str, redis_url: str, key_prefix: str) -> None:
    """With Redis's keys as they were, only what was in hand and the next few seconds' worth may have been sent."""
    async with stores(database_url, redis_url, key_prefix, qps=1) as stage:
        await stage.recover()
        await stage.hire(silent=OLD)
        await stage.order(8)
        await stage.night.transit.redis.hset(stage.night.keys().pace, "tat", 0)
        assert len(await stage.take(2)) == 2
        await stage.restarted()
        assert (await stage.recover()).suspects == 2 + 3
        assert await stage.flagged() == [1, 2, 3, 4, 5]


async def test_a_feed_that_redis_lost(database_url: str, redis_url: str, key_prefix: str) -> None:
    """A power cut takes Redis's last second and a worker: rows behind what Redis kept were sent, perhaps."""
    async with stores(database_url, redis_url, key_prefix, qps=1) as stage:
        await stage.recover()
        await stage.hire(silent=OLD)
        batch = await stage.order(2)
        await stage.night.sql(
            "UPDATE batch_partner SET fed_upto = 9 WHERE batch_id = %(batch)s RETURNING 1", batch=batch
        )
        await stage.night.sql(
            """WITH e AS (INSERT INTO event (source, event_id, event_type, body, body_sha256, trace_id, created_at,
                                             batch_id, business_date, amount_minor, currency)
                          SELECT source, 'more:' || n, event_type, body, body_sha256, trace_id, created_at, batch_id,
                                 business_date, amount_minor, currency
                          FROM event, generate_series(3, 9) AS n WHERE event_id LIKE '%%:1' RETURNING id, event_id)
               INSERT INTO delivery (event, partner, row_number, batch_id, updated_at)
               SELECT id, 'AB', split_part(event_id, ':', 2)::integer, %(batch)s, now() FROM e RETURNING 1""",
            batch=batch,
        )
        await stage.restarted()
        assert (await stage.recover()).suspects == 2 + 1, "two that are unread there, and the next"
        assert await stage.flagged() == [1, 2, 3]


async def test_a_worker_that_does_not_come_back(stage: Stage) -> None:
    """It is waited for while it is heard of, and suspected once its last word is older than a lease."""
    await stage.hire()
    await stage.order(2)
    await stage.flush()
    waits = []

    async def grows_silent(seconds: float) -> None:
        waits.append(seconds)
        assert (await gauge(stage.night.transit, stage.night.keys())).state == "closed"
        if len(waits) == 3:
            await stage.night.sql("UPDATE worker SET heartbeat_at = now() - %(old)s", old=OLD)

    assert (await stage.recover(grows_silent)).suspects == 2
    assert len(waits) == 3


@pytest.mark.parametrize("flushed", [False, True])
async def test_a_crash_after_the_fence(stage: Stage, *, flushed: bool) -> None:
    """Begun again with a higher number; what was lost before, or since, is not forgotten."""
    await stage.hire(silent=OLD)
    await stage.order(3)
    if flushed:
        await stage.restarted()  # all keys are there at the first attempt
    else:
        await stage.flush()
    stage.crash("recover-after-fence")
    assert (await read_generation(stage.night.pool)).recovering
    if flushed:
        await stage.flush()
    done = await stage.recover()
    assert (done.generation, done.suspects) == (3, 3)
    assert await stage.flagged() == [1, 2, 3]
    assert await stage.recovery().needed() is None


async def test_a_crash_after_the_drop(stage: Stage) -> None:
    """What was flagged is not flagged again, and the drop does not look like a loss."""
    await stage.hire(silent=OLD)
    await stage.order(3)
    await stage.flush()
    stage.crash("recover-after-drop")
    assert await stage.flagged() == [1, 2, 3]
    await stage.night.sql("UPDATE delivery SET possible_duplicate = false")
    await stage.hire("another", silent=OLD)
    done = await stage.recover()
    assert (done.generation, done.suspects) == (3, 0)
    assert await stage.flagged() == []
    await stage.night.feeder.step(3)
    assert len(await stage.take(10)) == 3


async def test_one_at_a_time(stage: Stage) -> None:
    """Who comes while somebody recovers does nothing."""
    await stage.hire()
    await stage.restarted()
    seconds = []

    async def another_comes(_: float) -> None:
        seconds.append(await stage.recovery().step())
        await stage.hand_in()

    assert (await stage.recover(another_comes)).generation == 2
    assert seconds == [None]


async def test_the_lock_outlives_long_waits(stage: Stage) -> None:
    """Its session may be idle for longer than others, or a slow worker would end it; only while it holds the lock."""
    async with stage.night.pool.connection() as connection:
        assert await (await connection.execute(statement("recover/lock"))).fetchone()
        shown = await (await connection.execute("SHOW idle_in_transaction_session_timeout")).fetchone()
        assert shown == ("10min",)
        await connection.rollback()
        shown = await (await connection.execute("SHOW idle_in_transaction_session_timeout")).fetchone()
        assert shown == ("30s",)


async def test_who_lost_the_lock_drops_nothing(stage: Stage) -> None:
    """A recovery whose session ended stops before it touches transit; the next one does all of it."""
    await stage.hire()
    await stage.order(2)
    await stage.restarted()

    async def session_ends(_: float) -> None:
        await stage.night.sql(
            """SELECT pg_terminate_backend(pid) FROM pg_stat_activity
               WHERE datname = current_database() AND state = 'idle in transaction'"""
        )
        await stage.hand_in()

    with pytest.raises(StoreUnavailable):
        await stage.recovery(session_ends).step()
    assert (await read_generation(stage.night.pool)).recovering
    assert (await gauge(stage.night.transit, stage.night.keys())).lanes != ()

    async def hands_in(_: float) -> None:
        await stage.hand_in()

    assert (await stage.recover(hands_in)).generation == 3


async def test_a_pause_survives(stage: Stage) -> None:
    """Operators' intent is in the record: a Redis that lost everything is paused again as it opens."""
    control = Control(stage.night.pool, stage.night.transit, stage.night.partners)
    await control.set_paused(["AB"], paused=True, who="ops", why="")
    await stage.flush()
    await stage.recover()
    assert (await gauge(stage.night.transit, stage.night.keys())).paused
    assert not (await gauge(stage.night.transit, stage.night.keys("CD"))).paused


async def test_old_outcomes_are_recorded_before_they_go(stage: Stage) -> None:
    """What was settled and not recorded is in the log afterwards, its stream is deleted, one offset is left."""
    await stage.order(3)
    for entry in await stage.take(3):
        await stage.settle(entry, State.SUCCEEDED, taken_in=1)
    await stage.restarted()
    await stage.recover()
    assert await stage.night.sql("SELECT count(*) FROM delivery_log") == [(3,)]
    assert set((await stage.night.statuses()).values()) == {"succeeded"}
    assert not await stage.night.transit.redis.exists(stage.night.keys().outcomes(1))
    assert await stage.night.sql("SELECT DISTINCT generation FROM outcome_offset") == [(2,)]


async def test_a_group_that_is_gone(stage: Stage) -> None:
    """Without its consumer group a lane cannot be read: recovery makes it anew."""
    batch = await stage.order(2)
    await stage.night.transit.redis.xgroup_destroy(stage.night.keys().lane(f"batch:{batch}"), "senders")
    done = await stage.recover()
    assert (done.reason, done.lost) == ("a consumer group of AB is missing", ("AB",))
    await stage.night.feeder.step(2)
    assert len(await stage.take(10)) == 2


async def test_outcomes_that_lost_their_tail(stage: Stage) -> None:
    """An outcome stream from an older snapshot would never be read again: recovery begins another one."""
    await stage.order(2)
    (entry,) = await stage.take(1)
    await stage.settle(entry, State.SUCCEEDED, taken_in=1)
    await stage.night.recorder.step()
    stream = stage.night.keys().outcomes(1)
    await stage.night.transit.redis.delete(stream)
    await stage.night.transit.redis.xadd(stream, {"o": b"", "d": "d", "a": "a", "t": "1", "l": ""}, id="1-1")
    done = await stage.recover()
    assert (done.reason, done.lost) == ("outcomes of AB end before what is recorded of them", ("AB",))
    await stage.night.feeder.step(2)
    (rest,) = await stage.take(10)
    await stage.settle(rest, State.SUCCEEDED, taken_in=2)
    assert await stage.night.recorder.step() == 1


async def test_a_postgresql_from_before(stage: Stage) -> None:
    """Restored behind Redis: the number goes past both, outcomes that it does not know are recorded, and what is
    open may have been sent since, though every worker handed in."""
    await stage.restarted()
    await stage.recover()
    await stage.order(2)
    (entry,) = await stage.take(1)
    await stage.settle(entry, State.SUCCEEDED, taken_in=2)
    await stage.night.sql("UPDATE generation SET number = 1")
    await stage.night.sql("UPDATE outcome_offset SET generation = 1")
    assert (await stage.recover()).generation == 3
    assert sorted((await stage.night.statuses()).values()) == ["pending", "succeeded"]
    assert await stage.flagged() == [2]


async def posted(stage: Stage, *names: str) -> Live:
    """These live events for AB, accepted, routed and fed in the present generation."""
    post = live(stage.night)
    await make_groups(stage.night.transit)
    await post.accept(*[event(name) for name in names])
    await post.routed(await stage.number())
    return post


async def flagged_live(stage: Stage) -> list[object]:
    """Live events that may have been sent."""
    rows = await stage.night.sql(
        """SELECT event_id FROM delivery JOIN event ON event.id = event
           WHERE possible_duplicate AND delivery.batch_id IS NULL ORDER BY event_id"""
    )
    return [row[0] for row in rows]


def named(entry: Entry) -> str:
    """The event's id alone."""
    return entry.delivery.partition(":")[2]


async def swept(stage: Stage) -> dict[str, bool]:
    """What a worker gets after the sweep, with its flag: nothing that is open is lost."""
    number = await stage.number()
    await stage.night.feeder.sweep(number, datetime.now(UTC) + timedelta(days=1))
    entries = await stage.take(1000)
    assert len({entry.delivery for entry in entries}) == len(entries)
    return {named(entry): entry.possible_duplicate for entry in entries}


async def test_live_everything_gone_and_somebody_silent(stage: Stage) -> None:
    """What was fed and has no outcome may have been sent, due retries too; what never came to Redis was not."""
    await stage.hire(silent=OLD)
    post = await posted(stage, "1", "2", "3")
    done, later, hand = await stage.take(3)
    await posted(stage, "lane")
    await stage.settle(done, State.SUCCEEDED, taken_in=1)
    await stage.settle(later, State.RETRYING, taken_in=1)
    await stage.night.recorder.step()
    await post.record(event("never"))
    await post.router.sweep(older_than=timedelta(0))
    await stage.flush()
    assert (await stage.recover()).suspects == 3
    again = {named(later): True, named(hand): True, "lane": True, "never": False}
    assert await flagged_live(stage) == sorted(name for name, flag in again.items() if flag)
    assert await swept(stage) == again


async def test_live_everything_gone_and_everybody_handed_in(stage: Stage) -> None:
    """Whoever says what it sent leaves nothing to suspect, and all that is open is fed again."""
    await stage.hire()
    await posted(stage, "sent")
    (sent,) = await stage.take(1)
    await posted(stage, "lane")
    await stage.flush()

    async def handed_in(_: float) -> None:
        await stage.settle(sent, State.SUCCEEDED, taken_in=1)
        await stage.hand_in()

    assert (await stage.recover(handed_in)).suspects == 0
    assert await swept(stage) == {"lane": False}


async def test_live_handed_over_in_an_older_generation_only(stage: Stage) -> None:
    """What a recovery gave back and nobody has fed since was not sent since."""
    await posted(stage, "1")
    await stage.restarted()
    await stage.recover()
    await stage.hire(silent=OLD)
    await stage.flush()
    assert (await stage.recover()).suspects == 0
    assert await swept(stage) == {"1": False}


async def test_live_perhaps_handed_over(stage: Stage) -> None:
    """A sweep that died in the middle may have fed what it noted: suspected in that generation, not in later ones."""
    post = await posted(stage, "1", "2")
    await stage.night.sql("UPDATE delivery SET fed_generation = -1")
    await stage.hire(silent=OLD)
    await stage.flush()
    assert (await stage.recover()).suspects == 2
    assert await swept(stage) == {"1": True, "2": True}
    assert [row[3] for row in await post.deliveries()] == [2, 2]


async def test_live_keys_there_and_somebody_silent(
    database_url: str, redis_url: str, key_prefix: str
) -> None:
    """With Redis's keys as they were: what was in hand, and the first few seconds' worth of the lane."""
    async with stores(database_url, redis_url, key_prefix, qps=1) as stage:
        await stage.recover()
        await stage.hire(silent=OLD)
        await posted(stage, *"abcdefgh")
        await stage.night.transit.redis.hset(stage.night.keys().pace, "tat", 0)
        in_hand = {entry.delivery for entry in await stage.take(2)}
        assert len(in_hand) == 2
        await stage.restarted()
        assert (await stage.recover()).suspects == 2 + 3
        assert {f"shop:{name}" for name in await flagged_live(stage)} > in_hand


@pytest.mark.parametrize("kept", [1, 4])
async def test_live_the_last_second_is_lost(
    database_url: str, redis_url: str, key_prefix: str, *, kept: int
) -> None:
    """Fed, and unknown to what Redis kept: perhaps sent, unless what it kept would have kept the worker busy."""
    async with stores(database_url, redis_url, key_prefix, qps=1) as stage:
        await stage.recover()
        await stage.hire(silent=OLD)
        await posted(stage, *[f"kept{n}" for n in range(kept)])
        keys, redis = stage.night.keys(), stage.night.transit.redis
        before = {key: await redis.dump(key) for key in (keys.open, keys.lane(LIVE), keys.pace)}
        await posted(stage, "lost")
        for key, value in before.items():
            await redis.restore(key, 0, value, replace=True)
        await stage.restarted()
        suspects = [f"kept{n}" for n in range(min(kept, 3))] + (["lost"] if kept < 3 else [])
        assert (await stage.recover()).suspects == len(suspects)
        assert len(await flagged_live(stage)) == len(suspects)
        assert ("lost" in await flagged_live(stage)) == (kept < 3)


async def test_live_a_partner_that_comes_back(stage: Stage) -> None:
    """Left out of a recovery: whatever it had in transit then may have been sent."""
    await posted(stage, "1")
    await stage.restarted()
    await stage.recovery(nobody, "CD").step()
    assert await stage.recovery().step() is None
    assert await swept(stage) == {"1": True}


async def test_live_a_postgresql_from_before(stage: Stage) -> None:
    """Restored behind Redis: nobody knows of any open delivery whether it was sent since."""
    await stage.restarted()
    await stage.recover()
    await posted(stage, "1")
    await stage.night.sql("UPDATE generation SET number = 1")
    await stage.night.sql("UPDATE outcome_offset SET generation = 1")
    await stage.night.sql("UPDATE delivery SET fed_generation = NULL")
    assert (await stage.recover()).generation == 3
    assert await swept(stage) == {"1": True}


@pytest.mark.parametrize("failpoint", ["recover-after-fence", "recover-after-drop"])
async def test_live_a_crash_in_recovery(stage: Stage, failpoint: str) -> None:
    """Begun again, it still knows in which generation deliveries were handed over."""
    await stage.hire(silent=OLD)
    await posted(stage, "1", "2")
    await stage.flush()
    stage.crash(failpoint)
    assert (await stage.recover()).generation == 3
    assert await swept(stage) == {"1": True, "2": True}


async def test_events_that_nobody_routed_survive(stage: Stage) -> None:
    """Inbound shards are no partner's transit: a recovery leaves them; after a FLUSHALL PostgreSQL has them."""
    post = live(stage.night)
    await make_groups(stage.night.transit)
    await post.accept(event("1"))
    await post.enqueue(event("2"))
    await stage.restarted()
    await stage.recover()
    assert await post.routed(2) == 2
    await post.accept(event("3"))
    await stage.flush()
    await stage.recover()
    assert await post.routed(3) == 0
    assert (await post.router.sweep(older_than=timedelta(0))).events == 1
    assert sorted(await swept(stage)) == ["1", "2", "3"]


async def test_a_partner_that_comes_while_recovery_waits(stage: Stage) -> None:
    """It is new to the next step; the one that goes on knows those that it began with."""
    await stage.hire()
    await stage.restarted()

    async def another_comes(_: float) -> None:
        stage.night.partners["EF"] = partner("EF")
        stage.night.partners.pop("CD")
        await stage.hand_in()

    recovery = stage.recovery(another_comes)
    assert (await recovery.step()) is not None
    assert await recovery.needed() == "new partner"
    assert await recovery.step() is None
    assert await recovery.needed() is None
