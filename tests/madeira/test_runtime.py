"""Repeating steps: what passes by itself is waited for, anything else ends the process, leaving is orderly."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable
from contextlib import suppress

import pytest

from madeira.runtime import Crew, Service, Stuck, brief, insist, run, stop_on_signals
from streams.errors import StaleGeneration, StoreUnavailable

AWAY = (StoreUnavailable, StaleGeneration)


def sequence(
    stop: asyncio.Event, *results: float | Exception
) -> tuple[list[int], Callable[[], Awaitable[float]]]:
    """A step that gives or raises these one after the other, then sets `stop`; and how often it was called."""
    calls: list[int] = []

    async def step() -> float:
        calls.append(len(calls))
        if len(calls) > len(results):
            stop.set()
            return 0.0
        result = results[len(calls) - 1]
        if isinstance(result, Exception):
            raise result
        return result

    return calls, step


def events(caplog: pytest.LogCaptureFixture) -> list[str]:
    """The event names that were logged."""
    return [record.getMessage() for record in caplog.records]


async def test_steps_are_repeated_until_stop() -> None:
    """A step that says 0 is called again at once."""
    stop = asyncio.Event()
    calls, step = sequence(stop, 0.0, 0.0, 0.001)
    await run([Service("a", step)], stop=stop, away=AWAY)
    assert len(calls) == 4


async def test_a_store_that_is_away_is_said_once_and_so_is_its_return(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It backs off and goes on; two lines, however often it failed."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    calls, step = sequence(stop, StoreUnavailable("no answer\nat all"), StaleGeneration("old"), 0.0)
    began = loop.time()
    await run([Service("record", step)], stop=stop, away=AWAY)
    assert loop.time() - began >= 0.2 + 0.4
    assert len(calls) == 4
    assert events(caplog) == ["store_away", "store_back"]
    away, back = [vars(record)["fields"] for record in caplog.records]
    assert away == {"service": "record", "error": "StoreUnavailable: no answer"}
    assert back == {"service": "record", "failures": 2}


async def test_a_store_that_is_away_does_not_stop_others() -> None:
    """Each service has its own wait."""
    stop = asyncio.Event()
    _, failing = sequence(asyncio.Event(), *[StoreUnavailable("x")] * 20)
    calls, fine = sequence(stop, *[0.0] * 50)
    await run([Service("failing", failing), Service("fine", fine)], stop=stop, away=AWAY)
    assert len(calls) == 51


async def test_any_other_error_ends_all() -> None:
    """Nobody goes on half: the other loops are cancelled and the error comes out."""
    stop = asyncio.Event()
    _, broken = sequence(stop, 0.0, ValueError("a fault"))
    cancelled = asyncio.Event()

    async def waits() -> float:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.set()
            raise
        return 0.0

    with pytest.RaisesGroup(pytest.RaisesExc(ValueError, match="a fault")):
        await run([Service("broken", broken), Service("waits", waits)], stop=stop, away=AWAY)
    assert cancelled.is_set()
    assert not stop.is_set()


async def test_who_does_not_come_back_is_stuck(caplog: pytest.LogCaptureFixture) -> None:
    """A step that is past its deadline ends all, and is named; whoever wants to leave without it is told first."""
    told = []

    async def hangs() -> float:
        await asyncio.Event().wait()
        return 0.0

    with pytest.RaisesGroup(pytest.RaisesExc(Stuck, match="take AB has not come back")):
        await run(
            [Service("take AB", hangs, deadline_s=0.01)],
            stop=asyncio.Event(), away=AWAY, on_stuck=lambda: told.append("stuck"),
        )  # fmt: skip
    assert events(caplog) == ["service_stuck"]
    assert told == ["stuck"]


async def test_who_hangs_while_leaving_is_stuck_too() -> None:
    """`stop` waits for the step under way, but not for ever."""
    stop = asyncio.Event()

    async def hangs() -> float:
        stop.set()
        await asyncio.Event().wait()
        return 0.0

    with pytest.RaisesGroup(Stuck):
        await run([Service("hangs", hangs, deadline_s=0.01)], stop=stop, away=AWAY)


async def test_a_wait_is_not_being_stuck() -> None:
    """The deadline is for one step, not for the time between two."""
    stop = asyncio.Event()
    calls, step = sequence(stop, 0.7)
    await run([Service("idle", step, deadline_s=0.01)], stop=stop, away=AWAY)
    assert len(calls) == 2


async def test_stop_finishes_the_step_under_way() -> None:
    """Nothing is cancelled in the middle."""
    stop, goes_on = asyncio.Event(), asyncio.Event()
    ended = []

    async def step() -> float:
        stop.set()
        asyncio.get_running_loop().call_later(0.01, goes_on.set)
        await goes_on.wait()
        ended.append("whole")
        return 60.0

    await run([Service("a", step)], stop=stop, away=AWAY)
    assert ended == ["whole"]


async def test_stop_cuts_the_wait_short() -> None:
    """A service that would look again in an hour leaves at once."""
    stop = asyncio.Event()

    async def step() -> float:
        asyncio.get_running_loop().call_later(0.01, stop.set)
        return 3600.0

    async with asyncio.timeout(5):
        await run([Service("a", step)], stop=stop, away=AWAY)


async def test_a_wake_that_nobody_clears_leaves_the_others_their_turn() -> None:
    """Or one service would keep all of the process, its watch included, from doing anything for ever."""
    stop, wake = asyncio.Event(), asyncio.Event()
    wake.set()
    turns = 0

    async def eager() -> float:
        nonlocal turns
        turns += 1
        assert turns < 1000, "the other one never had its turn"
        return 60.0

    calls, step = sequence(stop, 0.0, 0.0)
    await run([Service("eager", eager, wake=wake), Service("other", step)], stop=stop, away=AWAY)
    assert len(calls) == 3


async def test_wake_cuts_the_wait_short() -> None:
    """Who has work to do is called before his time."""
    stop, wake = asyncio.Event(), asyncio.Event()
    calls = []

    async def step() -> float:
        wake.clear()
        calls.append(1)
        if len(calls) == 3:
            stop.set()
            return 0.0
        asyncio.get_running_loop().call_later(0.01, wake.set)
        return 3600.0

    async with asyncio.timeout(5):
        await run([Service("a", step, wake=wake)], stop=stop, away=AWAY)
    assert len(calls) == 3


async def test_insist() -> None:
    """It tries until it succeeds once."""
    calls, step = sequence(asyncio.Event(), StoreUnavailable("x"), 0.0, 0.0)

    async def begin() -> None:
        await step()

    assert await insist(begin, stop=asyncio.Event(), away=AWAY)
    assert len(calls) == 2


async def test_insist_gives_up_at_stop() -> None:
    """Who is asked to leave before the store was there leaves."""
    stop = asyncio.Event()

    async def begin() -> None:
        stop.set()
        raise StoreUnavailable("x")

    async with asyncio.timeout(5):
        assert not await insist(begin, stop=stop, away=AWAY)


async def test_insist_finishes_a_try() -> None:
    """What was begun is not left half done: who was asked to leave meanwhile is told that it has begun."""
    stop, goes_on = asyncio.Event(), asyncio.Event()

    async def begin() -> None:
        stop.set()
        asyncio.get_running_loop().call_later(0.01, goes_on.set)
        await goes_on.wait()

    assert await insist(begin, stop=stop, away=AWAY)


async def test_insist_raises_a_fault() -> None:
    """What does not pass by itself comes out."""

    async def begin() -> None:
        raise ValueError("a fault")

    with pytest.raises(ValueError, match="a fault"):
        await insist(begin, stop=asyncio.Event(), away=AWAY)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_signals_ask_for_a_clean_leave(number: signal.Signals) -> None:
    """SIGTERM and SIGINT set `stop` and kill nothing."""
    stop = asyncio.Event()
    stop_on_signals(stop)
    try:
        os.kill(os.getpid(), number)
        async with asyncio.timeout(5):
            await stop.wait()
    finally:
        for each in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().remove_signal_handler(each)


def test_an_error_in_one_line() -> None:
    """Its type and the first line, also where it says nothing."""
    assert brief(ValueError("first\nsecond")) == "ValueError: first"
    assert brief(KeyError()) == "KeyError: "


async def test_a_swallowed_cancellation_does_not_keep_the_process() -> None:
    """A library may swallow it in the middle of a step; the service ends with the next one all the same."""
    begun = asyncio.Event()

    async def deaf() -> float:
        begun.set()
        with suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        return 0.0

    async def falls() -> float:
        await begun.wait()
        raise ZeroDivisionError

    async with asyncio.timeout(10):
        with pytest.raises(ExceptionGroup) as raised:
            await run([Service("deaf", deaf), Service("falls", falls)], stop=asyncio.Event(), away=AWAY)
    assert raised.group_contains(ZeroDivisionError, depth=1)


async def test_a_service_joins_while_others_run() -> None:
    """It is repeated like those that were there from the start, and its fault ends them all like theirs."""
    stop = asyncio.Event()
    joined: list[int] = []

    async def joins() -> float:
        joined.append(1)
        if len(joined) == 3:
            raise ValueError("a fault")
        return 0.0

    async def opens() -> float:
        crew.add(Service("joins", joins))
        return 3600.0

    crew = Crew([Service("opens", opens)], stop=stop, away=AWAY)
    async with asyncio.timeout(5):
        with pytest.RaisesGroup(pytest.RaisesExc(ValueError, match="a fault")):
            await crew.run()
    assert len(joined) == 3


async def test_a_service_leaves_and_the_others_go_on() -> None:
    """Its step under way is finished and is the last; who only waits leaves at once; `stop` ends the others."""
    stop, goes_on, begun = asyncio.Event(), asyncio.Event(), asyncio.Event()
    steps: list[str] = []

    async def working() -> float:
        begun.set()
        await goes_on.wait()
        steps.append("whole")
        return 0.0

    async def waiting() -> float:
        steps.append("waiting")
        return 3600.0

    async def decides() -> float:
        await begun.wait()
        crew.remove("working")
        crew.remove("waiting")
        goes_on.set()
        asyncio.get_running_loop().call_later(0.01, stop.set)
        return 3600.0

    services = [Service("waiting", waiting), Service("working", working), Service("decides", decides)]
    crew = Crew(services, stop=stop, away=AWAY, grace_s=60)
    async with asyncio.timeout(5):
        await crew.run()
    assert steps == ["waiting", "whole"]


async def test_who_ails_is_named() -> None:
    """A service whose store is away, until it is back."""
    stop = asyncio.Event()
    seen: list[tuple[str, ...]] = []
    _, failing = sequence(asyncio.Event(), StoreUnavailable("x"), 0.001)

    async def looks() -> float:
        if not seen or seen[-1] != crew.ails():
            seen.append(crew.ails())
        if len(seen) == 3:
            stop.set()
        return 0.01

    crew = Crew([Service("looks", looks), Service("record", failing)], stop=stop, away=AWAY)
    async with asyncio.timeout(30):
        await crew.run()
    assert seen == [(), ("record",), ()]


async def test_a_service_that_was_cancelled_from_within_is_a_fault() -> None:
    """It would be missing, and nobody would know."""

    async def cancelled() -> float:
        raise asyncio.CancelledError

    async with asyncio.timeout(5):
        with pytest.RaisesGroup(pytest.RaisesExc(RuntimeError, match="feed was cancelled")):
            await run([Service("feed", cancelled)], stop=asyncio.Event(), away=AWAY)
