"""The only loops in Madeira that repeat: each service is a step, and this file says when the next one is.

A loop whose store is away backs off, says so once, and says once that it is back. A loop that raises anything
else, or that makes no progress for longer than its deadline, ends the whole process: somebody who looks alive
and does nothing is worse than somebody who has left, for a leaver is noticed and started again.
"""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field

log = logging.getLogger(__name__)

Step = Callable[[], Awaitable[float]]
"""One bounded piece of work; returns the seconds until the next one is worth it."""

_FIRST_BACKOFF_S = 0.1
_LONGEST_BACKOFF_S = 2.0
_WATCH_EVERY_S = 0.5


@dataclass(slots=True, eq=False)
class Service:
    """A step and how it is repeated. `wake` cuts the wait short; `deadline_s` is the longest that a step may take."""

    name: str
    step: Step
    wake: asyncio.Event | None = None
    deadline_s: float = 120.0
    started_at: float | None = field(default=None, init=False)
    failures: int = field(default=0, init=False)
    """How often in a row its store was away."""
    leaving: bool = field(default=False, init=False)

    def overdue(self, now: float) -> bool:
        """Whether a step under way is past its deadline, by the loop's clock."""
        return self.started_at is not None and now - self.started_at > self.deadline_s


class Stuck(Exception):
    """A service did not come back from its step in time."""


class Crew:
    """Services that are repeated side by side until `stop` is set; they may join and leave meanwhile.

    From `stop` on a step under way has `grace_s` to finish. What takes longer (a recovery that waits for somebody)
    is cancelled: every step may be broken off anywhere. `away` are the errors that mean that a store does not
    answer. Any other error of a step ends them all and is raised by `run` (in an `ExceptionGroup`), and so is
    `Stuck`, after `on_stuck`: what is stuck may not let go when it is cancelled, so whoever calls may want to leave
    without it.
    """

    def __init__(
        self,
        services: Iterable[Service],
        *,
        stop: asyncio.Event,
        away: tuple[type[BaseException], ...],
        grace_s: float = 5.0,
        on_stuck: Callable[[], object] | None = None,
    ) -> None:
        self._services = {service.name: service for service in services}
        self._stop = stop
        self._away = away
        self._grace_s = grace_s
        self._on_stuck = on_stuck
        self._group: asyncio.TaskGroup | None = None
        self._loops: dict[Service, asyncio.Task[None]] = {}

    async def run(self) -> None:
        """Repeat them until `stop` is set. Raises what ended them otherwise."""
        async with asyncio.TaskGroup() as group:
            self._group = group
            for service in self._services.values():
                self._begin(service)
            watch = group.create_task(self._watch(), name="watch")
            await self._stop.wait()  # a loop that ends by its error cancels this, and the group raises it
            self._group = None
            if self._loops:
                _, slow = await asyncio.wait(self._loops.values(), timeout=self._grace_s)
                for task in slow:
                    log.warning("step_broken_off", extra={"fields": {"service": task.get_name()}})
                    task.cancel()
            watch.cancel()

    def add(self, service: Service) -> None:
        """One more, under a name that nobody has; from now on or from `run`. Too late after `stop`."""
        assert service.name not in self._services
        self._services[service.name] = service
        if self._group is not None:
            self._begin(service)

    def remove(self, name: str) -> None:
        """That one leaves: a step under way is finished, and is the last."""
        service = self._services.pop(name)
        service.leaving = True
        if service in self._loops and service.started_at is None:
            self._loops[service].cancel()  # it only waits

    def ails(self) -> tuple[str, ...]:
        """Names of services that are past their deadline or whose store is away."""
        now = asyncio.get_running_loop().time()
        return tuple(s.name for s in self._services.values() if s.failures or s.overdue(now))

    def _begin(self, service: Service) -> None:
        assert self._group is not None
        loop = self._group.create_task(self._repeat(service), name=service.name)
        self._loops[service] = loop
        loop.add_done_callback(lambda _: self._loops.pop(service))

    async def _repeat(self, service: Service) -> None:
        this = asyncio.current_task()
        try:
            await _repeat(service, self._stop, self._away)
        except asyncio.CancelledError:
            if this is not None and this.cancelling():
                raise
            # A group takes a cancelled task for one that was meant to end; this service would just be missing.
            raise RuntimeError(f"{service.name} was cancelled by something within it") from None

    async def _watch(self) -> None:
        loop = asyncio.get_running_loop()
        while True:  # until `run` ends it: who hangs while everybody leaves is stuck, too
            now = loop.time()
            for service in self._loops:
                if service.overdue(now):
                    log.error("service_stuck", extra={"fields": {"service": service.name}})
                    if self._on_stuck is not None:
                        self._on_stuck()
                    raise Stuck(f"{service.name} has not come back for {service.deadline_s:.0f} s")
            await asyncio.sleep(_WATCH_EVERY_S)


async def run(
    services: Iterable[Service],
    *,
    stop: asyncio.Event,
    away: tuple[type[BaseException], ...],
    grace_s: float = 5.0,
    on_stuck: Callable[[], object] | None = None,
) -> None:
    """Repeat these services, and no others, until `stop` is set, as a `Crew` does."""
    await Crew(services, stop=stop, away=away, grace_s=grace_s, on_stuck=on_stuck).run()


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
    while not stop.is_set() and not service.leaving:
        if this is not None and this.cancelling():
            # A library below swallowed it; whoever went on would keep the process from leaving.
            raise asyncio.CancelledError
        service.started_at = loop.time()
        try:
            delay = await service.step()
        except away as error:
            service.failures += 1
            delay = min(_LONGEST_BACKOFF_S, _FIRST_BACKOFF_S * 2 ** min(service.failures, 10))
            if service.failures == 1:
                log.warning("store_away", extra={"fields": {"service": service.name, "error": brief(error)}})
        else:
            if service.failures:
                fields = {"service": service.name, "failures": service.failures}
                log.warning("store_back", extra={"fields": fields})
            service.failures = 0
        finally:
            service.started_at = None
        if delay <= 0:
            await asyncio.sleep(0)
        elif not service.leaving:
            await _wait(delay, stop, service.wake)


async def _wait(delay: float, stop: asyncio.Event, wake: asyncio.Event | None) -> None:
    """Until `delay` seconds are over, or `stop` or `wake` is set. `wake` is cleared by whoever looks at the work."""
    event = stop if wake is None else wake
    if event.is_set():
        # A step that leaves it set must not keep everybody else from his turn, the watch included.
        await asyncio.sleep(0)
        return
    try:
        async with asyncio.timeout(delay):
            await event.wait()
    except TimeoutError:
        pass


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
