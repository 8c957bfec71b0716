"""A source as this process lets it in: who proves to be it, and how much of its rate is left here."""

from __future__ import annotations

from math import ceil

from aiolimiter import AsyncLimiter

from madeira.answers import Refused
from madeira.problem import Kind
from pipelines.live_source import LiveSource
from sinks.signature import Verifier


class Door:
    """One source as this process lets it in: its secrets ready for use, its share of the rate.

    Events and lookups have the same rate, and each their own limiter.
    """

    __slots__ = ("_block", "_bought", "_posts", "_reads", "retry_s", "source", "verifier")

    def __init__(self, source: LiveSource, processes: int) -> None:
        """`processes` share the source's rate."""
        self.source = source
        self.verifier = Verifier(source.keys)
        share = source.rate / processes
        self._posts = _limiter(share)
        self._reads = _limiter(share)
        self.retry_s = ceil(1 / share)
        self._bought = 0
        self._block = max(1, min(20, int(share / 100)))

    async def one(self) -> bool:
        """Whether one more event is within the rate; it is counted.

        Bought from the limiter in blocks of at most a hundredth of a second's rate, since asking it costs as much as
        reading an event.
        """
        if not self._bought:
            self._bought = await self.many(self._block)
        if not self._bought:
            return False
        self._bought -= 1
        return True

    async def many(self, events: int) -> int:
        """How many of so many events are within the rate now; they are counted."""
        posts = self._posts
        if events <= posts.max_rate and posts.has_capacity(events):
            await posts.acquire(events)
            return events
        for n in range(events):
            if not posts.has_capacity():
                return n
            await posts.acquire()
        return events

    async def lookup(self) -> bool:
        """Whether one more lookup is within the rate; it is counted."""
        if not self._reads.has_capacity():
            return False
        await self._reads.acquire()
        return True

    def over_rate(self) -> Refused:
        """What is said of an event, or a lookup, above the rate."""
        return Refused(
            Kind.RATE, f"{self.source.rate} events a second are agreed", retry_after_s=self.retry_s
        )


def _limiter(per_second: float) -> AsyncLimiter:
    return AsyncLimiter(per_second, 1) if per_second >= 1 else AsyncLimiter(1, 1 / per_second)
