"""The breaker and the pause in `pace`: what settle learns, what take hands out by it."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from itertools import pairwise
from typing import Literal

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec import structs

from streams import gauges, lanes
from streams.delivery import State
from streams.gauges import BrokenGauge
from streams.moves import Breaker, Entry, PaceState, Released, Settled, Settlement, Sign, Spared
from tests.streams.line import FAR, HORIZON, Line

THREE = Breaker(failures=3)
SECOND = 1_000_000


async def configure(line: Line, breaker: Breaker = THREE, *, interval_us: int = 1) -> None:
    """The line's bounds as they are, and this breaker."""
    await line.transit.scripts.configure(
        line.keys,
        generation=line.generation,
        interval_us=interval_us,
        guard_us=15_000,
        max_in_flight=1_000,
        floor_percent=20,
        breaker=breaker,
    )


def failed(line: Line, entry: Entry, at_us: int, *, reason: str = "no connection") -> Settlement:
    """A failure at this moment: a counted retry, or a spared one if the breaker was open by then."""
    return structs.replace(
        line.ended(entry, State.RETRYING, due_ms=10**13),
        sign=Sign.FAILED,
        ended_us=at_us,
        reason=reason,
        spared=Spared(
            state=State.RETRYING,
            attempts=entry.attempts,
            unknowns=entry.unknowns,
            outcome=b"spared " + entry.delivery.encode(),
            due_ms=at_us // 1_000,
        ),
    )


def answered(line: Line, entry: Entry, at_us: int, state: State = State.SUCCEEDED) -> Settlement:
    """Somebody answered at this moment."""
    return structs.replace(line.ended(entry, state), sign=Sign.ANSWERED, ended_us=at_us)


async def fail(line: Line, count: int, at_us: int) -> Settled:
    """So many fresh live entries fail, one settle for all."""
    entries = await line.entries(count)
    assert len(entries) == count
    return await line.settle(*[failed(line, entry, at_us) for entry in entries])


async def broken(line: Line) -> BrokenGauge | None:
    """The breaker as status sees it."""
    return (await line.gauge()).broken


async def time_passes(line: Line) -> None:
    """The next probe is due."""
    await line.set(probe_next=1)


async def test_opens_after_so_many_in_a_row(line: Line) -> None:
    """One failure less leaves it closed, an answer in between begins anew, and opening is told once."""
    await configure(line)
    await line.feed_live(*[f"live:{n}" for n in range(9)])

    assert (await fail(line, 2, SECOND)).turned is None
    (entry,) = await line.entries(1)
    await line.settle(answered(line, entry, SECOND, State.DEAD))
    assert (await fail(line, 2, SECOND)).turned is None
    assert await broken(line) is None
    before = await gauges.now_us(line.transit.redis)
    settled = await fail(line, 1, 7 * SECOND)
    after = await gauges.now_us(line.transit.redis)

    assert settled.turned == "opened"
    found = await broken(line)
    assert found is not None
    assert (found.since_us, found.reason, found.failures, found.probing) == (
        7 * SECOND,
        "no connection",
        3,
        False,
    )
    assert before + 5 * SECOND <= found.probe_us <= after + 5 * SECOND
    take = await line.take()
    assert (take.state, take.slots) == (PaceState.BROKEN, ())
    await line.assert_whole()


async def test_zero_switches_it_off(line: Line) -> None:
    """With 0 no number of failures opens it; one that is open when 0 comes is closed."""
    await configure(line, Breaker(failures=0))
    await line.feed_live(*[f"live:{n}" for n in range(60)])
    assert (await fail(line, 50, SECOND)).turned is None
    await configure(line)
    await fail(line, 3, SECOND)
    assert await broken(line) is not None

    await configure(line, Breaker(failures=0))

    assert await broken(line) is None
    assert (await line.take()).state is PaceState.OPEN


async def test_what_fails_while_it_is_open_costs_nothing(line: Line) -> None:
    """In flight when it opened: a failure before that moment counts, one after it comes back as it was, at once."""
    await configure(line)
    await line.feed_live(*[f"live:{n}" for n in range(5)])
    entries = await line.entries(5)
    await line.settle(*[failed(line, entry, 10 * SECOND) for entry in entries[:3]])

    await line.settle(failed(line, entries[3], 9 * SECOND), failed(line, entries[4], 11 * SECOND))

    counted = await line.where("live:3")
    spared = await line.where("live:4")
    assert counted is not None
    assert counted.startswith("delay:60/")
    assert spared is not None
    assert spared.startswith("delay:0/")
    said = [fields[b"o"] for fields in await line.outcomes()]
    assert said[3:] == [b"retrying live:3", b"spared live:4"]
    assert (await line.transit.scripts.release(line.keys, generation=1, limit=10)).count >= 1
    await time_passes(line)
    (probe,) = await line.entries()
    assert (probe.delivery, probe.attempts) == ("live:4", 0)
    assert probe.possible_duplicate, "what may have arrived is told, counted or not"
    await line.assert_whole()


async def test_one_probe_at_a_time(line: Line) -> None:
    """While one is under way nobody gets another; failing makes the wait twice as long up to its bound."""
    await configure(line, Breaker(failures=3, probe=timedelta(seconds=5), probe_most=timedelta(seconds=12)))
    await line.feed_live(*[f"live:{n}" for n in range(20)])
    await fail(line, 3, SECOND)

    waits = []
    for _ in range(3):
        await time_passes(line)
        first, second = await line.take(worker="w1"), await line.take(worker="w2")
        assert (len(first.slots), len(second.slots)) == (1, 0)
        assert first.state is second.state is PaceState.BROKEN
        probe = first.slots[0].entry
        assert probe is not None
        now = await gauges.now_us(line.transit.redis)
        assert (await line.settle(failed(line, probe, now))).turned is None
        found = await broken(line)
        assert found is not None
        waits.append(round((found.probe_us - now) / SECOND))
        assert (await line.take()).slots == ()
    assert waits == [10, 12, 12]


async def test_a_probe_that_nobody_settles_is_given_up(line: Line) -> None:
    """Its worker died: after its time another one goes out, and no earlier."""
    await configure(line)
    await line.feed_live(*[f"live:{n}" for n in range(5)])
    await fail(line, 3, SECOND)
    await time_passes(line)
    lost = await line.take()
    assert len(lost.slots) == 1
    until = int(await line.transit.redis.hget(line.keys.pace, "probe_until"))
    assert until == lost.slots[0].start_us + 30 * SECOND
    assert (await line.take(worker="w2")).slots == ()

    await line.set(probe_until=1)

    assert len((await line.take(worker="w2")).slots) == 1


async def test_a_probe_that_missed_its_slot_has_another(line: Line) -> None:
    """Whoever names it as held gets a slot for it at once, and for nothing else that he holds."""
    await configure(line)
    await line.feed_live(*[f"live:{n}" for n in range(6)])
    held, *others = await line.entries(4)
    await line.settle(*[failed(line, entry, SECOND) for entry in others])
    await time_passes(line)
    probe = (await line.take()).slots[0].place

    again = await line.take(held=(held.place, probe))

    assert [slot.place for slot in again.slots] == [probe]


async def test_a_held_entry_is_a_probe(line: Line) -> None:
    """What a worker has in hand unsent goes before anything fresh, here as always."""
    await configure(line)
    await line.feed_live(*[f"live:{n}" for n in range(6)])
    held, *others = await line.entries(4)
    await line.settle(*[failed(line, entry, SECOND) for entry in others])
    await time_passes(line)

    assert [slot.place for slot in (await line.take(held=(held.place,))).slots] == [held.place]


async def test_an_answer_closes_it(line: Line) -> None:
    """Any answer since it opened, told once; the rate begins at a quarter. One from before says nothing."""
    await configure(line, interval_us=1_000)
    await line.feed_live(*[f"live:{n}" for n in range(300)])
    old, *rest = await line.entries(4)
    await line.set(tat=0)
    await line.settle(*[failed(line, entry, 10 * SECOND) for entry in rest])
    assert (await line.settle(answered(line, old, 10 * SECOND))).turned is None
    assert await broken(line) is not None
    await time_passes(line)
    (probe,) = await line.entries()

    settled = await line.settle(answered(line, probe, 11 * SECOND, State.RETRYING))

    assert settled.turned == "closed"
    assert await broken(line) is None
    starts = [slot.start_us for slot in (await line.take(10)).slots]
    assert {b - a for a, b in pairwise(starts)} == {4_000}


async def test_an_old_probe_holds_nobody_up(line: Line) -> None:
    """Closed by another answer than its probe's, it opens again: the next probe waits for no old one."""
    await configure(line)
    await line.feed_live(*[f"live:{n}" for n in range(20)])
    other, *rest = await line.entries(4)
    await line.settle(*[failed(line, entry, SECOND) for entry in rest])
    await time_passes(line)
    assert len((await line.take()).slots) == 1
    assert (await line.settle(answered(line, other, 2 * SECOND))).turned == "closed"
    await line.set(ramp_until=0, tat=0)
    assert (await fail(line, 3, 3 * SECOND)).turned == "opened"
    await time_passes(line)

    assert len((await line.take()).slots) == 1


async def test_it_outlasts_a_recovery(line: Line) -> None:
    """A new generation finds it open, with the probe in nobody's hand."""
    await configure(line)
    await line.feed_live(*[f"live:{n}" for n in range(5)])
    await fail(line, 3, SECOND)
    await time_passes(line)
    assert len((await line.take()).slots) == 1
    line.generation = 2
    await line.transit.scripts.fence(line.keys, generation=2, guard_us=15_000)
    await lanes.drop_transit(line.transit, line.keys)
    await line.transit.scripts.unfence(
        line.keys, generation=2, interval_us=1, guard_us=1, max_in_flight=9, floor_percent=20, paused=False,
        breaker=THREE,
    )  # fmt: skip
    await line.set(tat=0)
    await line.feed_live("live:again")

    found = await broken(line)
    assert found is not None
    assert not found.probing
    assert len((await line.take()).slots) == 1


async def test_handed_in_while_closed(line: Line) -> None:
    """What recovery collects is judged by the breaker that was open; what is told again teaches it nothing."""
    await configure(line)
    await line.feed_live(*[f"live:{n}" for n in range(5)])
    entries = await line.entries(4)
    await line.settle(*[failed(line, entry, SECOND) for entry in entries[:3]])
    line.generation = 2
    await line.transit.scripts.fence(line.keys, generation=2, guard_us=15_000)

    last = structs.replace(
        failed(line, entries[3], 2 * SECOND), attempt_id=entries[3].place.attempt_id("AB", 1)
    )
    assert (await line.settle(last)).late == (False,)
    assert (await line.settle(last)).late == (True,)

    assert [fields[b"o"] for fields in await line.outcomes()] == [b"spared live:3"] * 2
    found = await broken(line)
    assert found is not None
    assert found.failures == 4


# -- the pause that a partner asks for --------------------------------------------------------------------------


async def pausing(line: Line, seconds: int) -> None:
    """One live entry is answered with `Retry-After`, uncounted."""
    (entry,) = await line.entries(1)
    settled = structs.replace(
        answered(line, entry, SECOND, State.RETRYING),
        attempts=entry.attempts,
        delay_s=0,
        due_ms=0,
        pause_us=seconds * SECOND,
    )
    await line.settle(settled)


async def test_a_pause_is_for_everything_and_never_early(line: Line) -> None:
    """No slot of any lane begins before it is over; what was answered so is among the first afterwards."""
    await configure(line)
    await line.feed_live("live:1", "live:2")
    await line.feed_batch(2)
    before = await gauges.now_us(line.transit.redis)

    await pausing(line, 30)

    assert (await line.take(horizon=FAR)).slots == ()
    assert (await line.gauge()).paused_until_us >= before + 30 * SECOND
    assert await line.transit.scripts.release(line.keys, generation=1, limit=9) == Released(1, None)
    until = await gauges.now_us(line.transit.redis) + SECOND
    await line.set(paused_until=until)
    slots = (await line.take(horizon=FAR)).slots
    assert [slot.entry.delivery for slot in slots if slot.entry] == ["live:2", "live:1", "job:7-1", "job:7-2"]
    assert all(slot.start_us >= until for slot in slots)
    assert all(slot.entry.attempts == 0 for slot in slots if slot.entry)


async def test_a_shorter_wish_shortens_nothing(line: Line) -> None:
    """Of two wishes the later end holds."""
    await configure(line)
    await line.feed_live("live:1", "live:2")
    first, second = await line.entries(2)
    for entry, seconds in ((first, 60), (second, 2)):
        await line.settle(structs.replace(answered(line, entry, 1), pause_us=seconds * SECOND))

    now = await gauges.now_us(line.transit.redis)
    assert (await line.gauge()).paused_until_us > now + 50 * SECOND


@pytest.mark.parametrize(
    ("left_us", "factor"), [(11 * SECOND, 4), (6 * SECOND, 4), (4 * SECOND, 2), (-1, 1), (0, 1)]
)
async def test_the_rate_comes_back_by_and_by(line: Line, left_us: int, factor: int) -> None:
    """A quarter for five seconds, half for five, then all of it."""
    await line.open_again(interval_us=1_000)
    await line.feed_batch(100)
    await line.set(ramp_until=await gauges.now_us(line.transit.redis) + left_us if left_us else 0)

    starts = [slot.start_us for slot in (await line.take()).slots]

    assert {b - a for a, b in pairwise(starts)} == {1_000 * factor}


async def test_a_clock_that_stepped_back_ends_no_rate(line: Line) -> None:
    """Pause, ramp and probe that lie further ahead than anybody sets them are brought back, once."""
    await configure(line)
    far = await gauges.now_us(line.transit.redis) + 10**10
    await line.set(
        paused_until=far, ramp_until=far, broken_since=1, probe_next=far, probe="live/1-1", probe_until=far
    )

    now = (await line.take()).now_us
    names = ("paused_until", "ramp_until", "probe_next", "probe_until")
    found = [int(value) - now for value in await line.transit.redis.hmget(line.keys.pace, *names)]

    assert found == [3_600 * SECOND, 3_610 * SECOND, 60 * SECOND, 32 * SECOND + 4]


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    qps=st.sampled_from([1, 3, 50, 300, 1000]),
    turns=st.lists(
        st.tuples(
            st.integers(1, 60),
            st.sampled_from([50, 400, 2_000]),
            st.sampled_from(["", "pause", "ramp", "open", "close"]),
            st.integers(0, 11_000),
        ),
        min_size=3,
        max_size=12,
    ),
)
async def test_no_second_holds_more_than_agreed(
    line: Line, qps: int, turns: list[tuple[int, int, Literal["", "pause", "ramp", "open", "close"], int]]
) -> None:
    """Whatever pauses, opens, closes and comes back by and by: no second and its guard holds more than Q starts."""
    await lanes.drop_transit(line.transit, line.keys)
    line.generation += 1
    interval = (SECOND + 15_000) // qps + 1
    await line.open(interval_us=interval, max_in_flight=100_000)
    await configure(line, interval_us=interval)
    await line.set(broken_since=0, paused_until=0, ramp_until=0)
    await line.feed_batch(800, batch=line.generation)
    starts: list[int] = []
    for limit, horizon_ms, what, ms in turns:
        now = await gauges.now_us(line.transit.redis)
        match what:
            case "pause":
                await line.set(paused_until=now + ms * 100, ramp_until=now + ms * 100 + 10 * SECOND)
            case "ramp":
                await line.set(ramp_until=now + ms * 1_000)
            case "open":
                await line.set(broken_since=now, probe_next=now + ms * 100, probe_wait=5 * SECOND)
            case "close":
                await line.set(broken_since=0, ramp_until=now + 10 * SECOND)
            case "":
                pass
        take = await line.take(limit, horizon=max(HORIZON, timedelta(milliseconds=horizon_ms)))
        assert take.state is not PaceState.BROKEN or len(take.slots) <= 1
        starts += [slot.start_us for slot in take.slots]

    assert starts == sorted(starts)
    assert all(b - a >= interval for a, b in pairwise(starts))
    window = SECOND + 15_000
    for i, start in enumerate(starts):
        assert sum(1 for other in starts[i : i + qps + 1] if other < start + window) <= qps


# -- against a model --------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Model:
    """What the breaker ought to be, in a dozen lines. Waits in seconds."""

    most: int = 3
    failures: int = 0
    since: int = 0
    wait: int = 5
    probe: str | None = None
    due: bool = False
    spared: set[str] = field(default_factory=set)

    def fails(self, delivery: str, at: int) -> bool:
        """An attempt failed; whether it is spared."""
        spared = 0 < self.since < at
        self.failures += 1
        if self.since:
            if self.probe == delivery:
                self.probe, self.wait, self.due = None, min(self.wait * 2, 60), False
        elif self.failures >= self.most:
            self.since, self.wait, self.due = at, 5, False
        return spared

    def answers(self, delivery: str, at: int) -> None:
        """Somebody answered."""
        if self.probe == delivery:
            self.probe = None
        if not self.since or at > self.since:
            self.failures = self.since = 0

    def room(self, limit: int) -> int:
        """How many a take may hand out."""
        if not self.since:
            return limit
        return 0 if self.probe or not self.due else 1


STEPS = st.one_of(
    st.tuples(st.just("take"), st.integers(1, 5)),
    st.tuples(st.just("due"), st.just(0)),
    st.tuples(st.just("expire"), st.just(0)),
    st.tuples(
        st.sampled_from(["fail", "fail", "fail", "answer", "fail_before", "answer_before"]), st.integers(0, 9)
    ),
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=st.lists(STEPS, max_size=60))
async def test_is_the_model(line: Line, steps: list[tuple[str, int]]) -> None:
    """Through any sequence of takes, failures, answers and waits it is what a dozen pure lines say it is."""
    await lanes.drop_transit(line.transit, line.keys)
    await line.open_again()
    await configure(line)
    await line.set(broken_since=0, failures=0, paused_until=0, ramp_until=0)
    await line.transit.redis.hdel(line.keys.pace, "probe", "probe_until", "probe_next", "probe_wait")
    await line.feed_live(*[f"live:{n}" for n in range(400)])
    model, hand, clock = Model(), list[Entry](), 1_000
    for what, number in steps:
        clock += 10
        if what == "take":
            await line.set(tat=0, ramp_until=0)
            taken = await line.entries(number)
            assert len(taken) == model.room(number)
            assert all(entry.attempts == 0 for entry in taken)
            if model.since and taken:
                model.probe = taken[0].delivery
            hand += taken
        elif what == "due":
            await line.set(probe_next=1)
            model.due = True
        elif what == "expire":
            await line.set(probe_until=1)
            if model.since and model.probe:
                model.probe = None
        elif hand:
            entry = hand.pop(number % len(hand))
            at = clock if not what.endswith("_before") or not model.since else model.since - 1
            if what.startswith("fail"):
                await line.settle(failed(line, entry, at))
                spared = model.fails(entry.delivery, at)
                assert (await line.outcomes())[-1][b"o"].startswith(b"spared" if spared else b"retrying")
                where = await line.where(entry.delivery)
                assert where is not None
                assert where.startswith("delay:0/" if spared else "delay:60/")
            else:
                await line.settle(answered(line, entry, at))
                model.answers(entry.delivery, at)
        found = await broken(line)
        assert (found.since_us if found else 0) == model.since
        if found:
            assert found.failures == model.failures
            assert int(await line.transit.redis.hget(line.keys.pace, "probe_wait")) == model.wait * SECOND
    await line.assert_whole()
