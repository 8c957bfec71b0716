"""The only loops in Madeira that repeat: each service is a step, and this file says when the next one is.

A loop whose store is away backs off, says so once, and says once that it is back. A loop that raises anything
else, or that makes no progress for longer than its deadline, ends the whole process: somebody who looks alive
and does nothing is worse than somebody who has left, for a leaver is noticed and started again.
"""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

log = logging.getLogger(__name__)

Step = Callable[[], Awaitable[float]]
"""One bounded piece of work; returns the seconds until the next one is worth it."""

_FIRST_BACKOFF_S = 0.1
_LONGEST_BACKOFF_S = 2.0
_WATCH_EVERY_S = 0.5


@dataclass(slots=True)
class Service:
    """A step and how it is repeated. `wake` cuts the wait short; `deadline_s` is the longest that a step may take."""

    name: str
    step: Step
    wake: asyncio.Event | None = None
    deadline_s: float = 120.0
    started_at: float | None = field(default=None, init=False)


class Stuck(Exception):
    """A service did not come back from its step in time."""


async def run(
    services: Sequence[Service],
    *,
    stop: asyncio.Event,
    away: tuple[type[BaseException], ...],
    grace_s: float = 5.0,
    on_stuck: Callable[[], object] | None = None,
) -> None:
    """Repeat all services until `stop` is set; a step under way has `grace_s` from then on to finish.

    What takes longer (a recovery that waits for somebody) is cancelled: every step may be broken off anywhere.
    `away` are the errors that mean that a store does not answer. Any other error of a step ends them all and
    is raised (in an `ExceptionGroup`), and so is `Stuck`, after `on_stuck`: what is stuck may not let go when it
    is cancelled, so whoever calls may want to leave without it.
    """
    async with asyncio.TaskGroup() as group:
        loops = [group.create_task(_repeat(service, stop, away), name=service.name) for service in services]
        watch = group.create_task(_watch(services, on_stuck), name="watch")
        asked = group.create_task(stop.wait())
        # A loop only ends by `stop` or by its error, which the group raises here.
        await asyncio.wait({asked, *loops}, return_when=asyncio.FIRST_COMPLETED)
        asked.cancel()
        _, slow = await asyncio.wait(loops, timeout=grace_s)
        for task in slow:
            log.warning("step_broken_off", extra={"fields": {"service": task.get_name()}})
            task.cancel()
        watch.cancel()


async def insist(
    step: Callable[[], Awaitable[None]], *, stop: asyncio.Event, away: tuple[type[BaseException], ...]
) -> bool:
    """Repeat a step that must succeed once before anything else; False when `stop` was set first.

    A try under way is finished, and counts if it succeeds: what it began is for the caller to end.
    """
    succeeded = False
    ended = asyncio.Event()

    async def once() -> float:
        nonlocal succeeded
        await step()
        succeeded = True
        ended.set()
        return 0.0

    async def stopped() -> None:
        await stop.wait()
        ended.set()

    stopping = asyncio.create_task(stopped())
    try:
        await _repeat(Service(step.__name__, once), ended, away)
    finally:
        stopping.cancel()
    return succeeded


async def _repeat(service: Service, stop: asyncio.Event, away: tuple[type[BaseException], ...]) -> None:
    loop, this = asyncio.get_running_loop(), asyncio.current_task()
    failures = 0
    while not stop.is_set():
        if this is not None and this.cancelling():
            # A library below swallowed it; whoever went on would keep the process from leaving.
            raise asyncio.CancelledError
        service.started_at = loop.time()
        try:
            delay = await service.step()
        except away as error:
            failures += 1
            delay = min(_LONGEST_BACKOFF_S, _FIRST_BACKOFF_S * 2 ** min(failures, 10))
            if failures == 1:
                log.warning("store_away", extra={"fields": {"service": service.name, "error": brief(error)}})
        else:
            if failures:
                log.warning("store_back", extra={"fields": {"service": service.name, "failures": failures}})
            failures = 0
        finally:
            service.started_at = None
        if delay <= 0:
            await asyncio.sleep(0)
        else:
            await _wait(delay, stop, service.wake)


async def _wait(delay: float, stop: asyncio.Event, wake: asyncio.Event | None) -> None:
    """Until `delay` seconds are over, or `stop` or `wake` is set. `wake` is cleared by whoever looks at the work."""
    event = stop if wake is None else wake
    try:
        async with asyncio.timeout(delay):
            await event.wait()
    except TimeoutError:
        pass


async def _watch(services: Sequence[Service], on_stuck: Callable[[], object] | None) -> None:
    loop = asyncio.get_running_loop()
    while True:  # until `run` ends it: who hangs while everybody leaves is stuck, too
        now = loop.time()
        for service in services:
            if service.started_at is not None and now - service.started_at > service.deadline_s:
                log.error("service_stuck", extra={"fields": {"service": service.name}})
                if on_stuck is not None:
                    on_stuck()
                raise Stuck(f"{service.name} has not come back for {service.deadline_s:.0f} s")
        await asyncio.sleep(_WATCH_EVERY_S)


def stop_on_signals(stop: asyncio.Event, asked: Callable[[], object] | None = None) -> None:
    """SIGTERM and SIGINT ask for a clean leave; `asked` is called at the first one."""
    loop = asyncio.get_running_loop()

    def leave() -> None:
        if not stop.is_set() and asked is not None:
            asked()
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, leave)


def brief(error: BaseException) -> str:
    """An error in one line, for logs: its type and the first line of what it says."""
    return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
