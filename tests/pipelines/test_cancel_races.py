"""Cancel against everything that may happen to a delivery meanwhile, in any order."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from pipelines.cancel import Cancel
from pipelines.dead_letters import Filter
from pipelines.replay import Replay
from streams.delivery import WORKER_DIED, Kind, State
from streams.gauges import gauge
from streams.scripts import Entry
from tests.pipelines.night import WORKER, Night, attempt, night, settlement
from tests.pipelines.test_replay import TODAY

ANSWERS = {
    "succeeds": (State.SUCCEEDED, Kind.SUCCEEDED),
    "retries": (State.RETRYING, Kind.RETRY),
    "is lost": (State.RETRYING, Kind.UNKNOWN),
    "is refused": (State.DEAD, Kind.DEAD),
    "is given up": (State.DEAD, Kind.UNKNOWN),
}
STEPS = [
    "feed",
    "sweep",
    "take",
    "take",
    "record",
    "release",
    "cancel",
    "tell",
    "give back",
    "hold",
    "die",
    "wake",
    "replay",
]
MAY_HAVE = {"is lost", "is given up"}


@dataclass
class World:
    """One worker's hand, what it did, and who died with an entry in hand and may wake up."""

    night: Night
    hand: list[Entry] = field(default_factory=list)
    ghosts: list[Entry] = field(default_factory=list)
    told: set[str] = field(default_factory=set)
    """Cancelled, and Redis knows: none of these is handed out again."""
    answers: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))

    async def act(self, what: str) -> None:
        """Let this happen."""
        stores, keys = self.night, self.night.keys()
        scripts = stores.transit.scripts
        match what:
            case "feed":
                await stores.feeder.step(1)
            case "sweep":
                await stores.feeder.sweep(1, datetime.now(UTC) + timedelta(days=365))
            case "take":
                for entry in await stores.take(1):
                    assert entry.delivery not in self.told | {held.delivery for held in self.hand}
                    self.hand.append(entry)
            case "hold":
                # It asks for another slot for what it holds; what it is not given, it holds no more.
                take = await scripts.take(
                    keys, generation=1, worker=WORKER, limit=len(self.hand), horizon=timedelta(seconds=2),
                    held=[entry.place for entry in self.hand],
                )  # fmt: skip
                before = {entry.place: entry for entry in self.hand}
                if before:
                    self.hand = [slot.entry or before[slot.place] for slot in take.slots]
                assert not self.told & {entry.delivery for entry in self.hand}
            case "record":
                await stores.recorder.step()
            case "release":
                await scripts.release(keys, generation=1, limit=100)
            case "cancel":
                await Cancel(stores.pool, stores.transit, stores.partners).cancel(
                    Filter(), dead=False, who="ann", why=""
                )
            case "tell":
                await Cancel(stores.pool, stores.transit, stores.partners).step(1)
                self.told = await self._among("JOIN cancelled USING (event, partner)")
            case "replay":
                await Replay(stores.pool, stores.partners).replay(Filter(), today=TODAY, who="ann")
                self.told -= await self._among("WHERE status = 'pending'")
            case "give back" if self.hand:
                await scripts.give_back(keys, generation=1, places=[self.hand.pop(0).place])
            case "die" if self.hand:
                entry = self.hand.pop(0)
                self.ghosts.append(entry)
                self.answers[entry.delivery].append("is lost")
                await self._settle(entry, State.RETRYING, Kind.UNKNOWN, WORKER_DIED)
            case "wake" if self.ghosts:
                entry = self.ghosts.pop(0)
                self.answers[entry.delivery].append("succeeds")
                await self._settle(entry, State.SUCCEEDED, Kind.SUCCEEDED, "late")
            case _ if what in ANSWERS and self.hand:
                entry = self.hand.pop(0)
                self.answers[entry.delivery].append(what)
                await self._settle(entry, *ANSWERS[what], "as told")

    async def _settle(self, entry: Entry, state: State, kind: Kind, reason: str) -> None:
        ended = attempt(
            entry, state, outcome=kind, reason=reason, number=entry.attempts + 1,
            possible_duplicate=entry.possible_duplicate,
        )  # fmt: skip
        await self.night.settle(settlement(entry, ended))

    async def _among(self, rest: str) -> set[str]:
        found = await self.night.sql(
            "SELECT source || ':' || event_id FROM delivery JOIN event ON event.id = delivery.event " + rest
        )
        return {str(key) for (key,) in found}

    async def until_quiet(self) -> None:
        """Everything that is under way comes to its end, and is recorded and told."""
        while await self.night.recorder.step():
            pass
        await self.act("tell")


@pytest.fixture
async def stores(database_url: str, redis_url: str, key_prefix: str) -> AsyncIterator[Night]:
    """Both stores for all examples."""
    async with night(database_url, redis_url, key_prefix) as found:
        yield found


async def begin(stores: Night) -> None:
    """As if nothing had ever been."""
    await stores.sql(
        "TRUNCATE event, delivery, delivery_log, batch, batch_total, batch_partner, cancelled, audit"
    )
    await stores.sql("DELETE FROM outcome_offset")
    for name in stores.partners:
        async for key in stores.transit.redis.scan_iter(match=stores.keys(name).every, count=1000):
            await stores.transit.redis.delete(key)
    await stores.open(1)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(acts=st.lists(st.sampled_from([*STEPS, *ANSWERS]), max_size=40), last=st.sampled_from(list(ANSWERS)))
@example(["take", "cancel", "tell", "retries", "release", "take"], "retries")
@example(["take", "cancel", "tell", "die", "release", "take", "wake"], "retries")
@example(["take", "cancel", "tell", "hold"], "succeeds")
@example(["take", "cancel", "tell", "give back", "take"], "succeeds")
@example(["take", "is refused", "record", "replay", "feed", "take", "take", "cancel", "tell"], "is lost")
@example(["take", "is lost", "record", "cancel", "tell", "replay", "feed", "take"], "succeeds")
async def test_one_end_and_nothing_sent_after_it(stores: Night, acts: list[str], last: str) -> None:
    """Cancelled: nothing of it arrived or may have. Delivered: it was. And nothing cancelled is handed out again."""
    await begin(stores)
    await stores.release(2)
    world = World(stores)
    await world.act("feed")
    for act in acts:
        await world.act(act)
    # The last command: everything that waits is cancelled, and it returns when the hand is empty.
    await world.until_quiet()
    await world.act("cancel")
    await world.act("tell")
    while world.hand:
        await world.act(last)
    await world.until_quiet()
    assert await stores.sql("SELECT count(*) FROM cancelled WHERE NOT told") == [(0,)]
    for act in ("feed", "sweep", "release", "take", "take", "take"):
        await world.act(act)
    assert world.hand == []
    found = await stores.sql(
        """SELECT e.source || ':' || e.event_id, d.status::text, d.cause
           FROM delivery d JOIN event e ON e.id = d.event"""
    )
    for delivery, status, cause in found:
        answers = set(world.answers[str(delivery)])
        if "succeeds" in answers:
            assert status == "succeeded"
        elif answers & MAY_HAVE:
            assert status == "dead"
        else:
            assert status in {"cancelled", "dead"}
            assert status == "cancelled" or (cause == "refused" and "is refused" in answers)
    now = await gauge(stores.transit, stores.keys())
    assert (now.batch, now.live, now.pending, now.delays) == (0, 0, 0, ())
