"""Whatever is done in whatever order: counters are right and each delivery is in exactly one place."""

from __future__ import annotations

import random
from datetime import timedelta

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from streams import lanes, leases
from streams.delivery import State
from streams.moves import Entry
from tests.streams.line import Line

STEPS = (
    "feed_batch",
    "feed_live",
    "feed_known",
    "take",
    "settle",
    "give_back",
    "release",
    "reap",
    "late",
    "forget",
)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    steps=st.lists(st.sampled_from(STEPS), min_size=5, max_size=40), chance=st.randoms(use_true_random=False)
)
async def test_any_order_keeps_the_books(line: Line, steps: list[str], chance: random.Random) -> None:
    """After every step the counters are what the streams hold, `open` says where each delivery is, and none that
    was fed and has not ended is anywhere else."""
    await lanes.drop_transit(line.transit, line.keys)
    await line.open_again(max_in_flight=20)
    line.fed.clear()
    scripts, keys, generation = line.transit.scripts, line.keys, line.generation
    fed: set[str] = set()
    ended: set[str] = set()
    hands: dict[str, list[Entry]] = {"w1": [], "w2": []}
    past: list[Entry] = []
    for number, step in enumerate(steps):
        worker = chance.choice(["w1", "w2"])
        hand = hands[worker]
        if step == "feed_batch":
            fed.update(await line.feed_batch(chance.randint(1, 4), batch=chance.choice([7, 8])))
        elif step == "feed_live":
            fed.add(f"live:{number}")
            await line.feed_live(f"live:{number}")
        elif step == "feed_known" and fed:
            await line.feed_live(*(fed - ended), lane=chance.choice(["live", "batch:7:returns"]))
        elif step == "take":
            hand += await line.entries(chance.randint(1, 5), worker=worker)
        elif step == "settle" and hand:
            ending = [
                (entry, chance.choice([State.SUCCEEDED, State.RETRYING, State.DEAD]))
                for entry in hand[: chance.randint(1, 3)]
            ]
            del hand[: len(ending)]
            settled = await line.settle(
                *[line.ended(e, state, delay_s=chance.choice([3, 6])) for e, state in ending]
            )
            for (entry, state), late in zip(ending, settled.late, strict=True):
                past.append(entry)
                if state is State.SUCCEEDED or (state is State.DEAD and not late):
                    ended.add(entry.delivery)
        elif step == "give_back" and hand:
            places = [hand.pop().place for _ in range(chance.randint(1, len(hand)))]
            await scripts.give_back(keys, generation=generation, places=places)
        elif step == "release":
            await scripts.release(keys, generation=generation, limit=chance.randint(1, 5))
        elif step == "reap":
            # Nobody has a lease here, so all that is in hand is taken over; the hands find out when they settle.
            taken = await leases.claim_from_dead(
                line.transit, keys, generation=generation, reaper="w3", min_idle=timedelta(0), limit=3
            )
            await line.settle(*[line.ended(entry, State.RETRYING, delay_s=3) for entry in taken])
        elif step == "late" and past:
            entry = chance.choice(past)
            state = chance.choice([State.SUCCEEDED, State.RETRYING, State.DEAD])
            assert (await line.settle(line.ended(entry, state))).late == (True,)
            if state is State.SUCCEEDED:
                ended.add(entry.delivery)
        elif step == "forget":
            # Nothing is fed again in this test after it was forgotten, so forgetting is free.
            await scripts.forget(keys, generation=generation, upto="+", limit=chance.randint(1, 4))
            await line.set(
                counted=int(await line.transit.redis.hget(keys.pace, "added") or 0)
                - len(await line.outcomes())
            )
        await line.assert_whole()
        assert set(await line.held_by_streams()) == fed - ended
