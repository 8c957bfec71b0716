"""The marks between which a partner's lanes are kept: enough to send, never a whole night in memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from streams.connection import reached
from streams.envelope import Lane
from streams.keys import PartnerKeys
from streams.transit import Transit


@dataclass(frozen=True, slots=True)
class Marks:
    """Feeding stops at `high` deliveries in transit and goes on at `low`."""

    high: int
    low: int

    def room(self, waiting: int, *, resting: bool) -> int:
        """How many more may be fed, 0 while resting until `low` is reached."""
        if resting and waiting > self.low:
            return 0
        return max(self.high - waiting, 0)


BATCH_MARKS = Marks(high=50_000, low=20_000)
LIVE_MARKS = Marks(high=20_000, low=10_000)
"""Live deliveries are counted apart: a night's batch leaves their room alone."""


async def waiting(
    transit: Transit, partners: Sequence[PartnerKeys], *, lane: Lane = Lane.BATCH
) -> tuple[int, ...]:
    """Each partner's deliveries of one kind in lanes, delays and hands. Raises `StoreUnavailable`."""
    if not partners:
        return ()
    pipeline = transit.redis.pipeline(transaction=False)
    for keys in partners:
        pipeline.hget(keys.pace, lane.value)
    with reached():
        answers = await pipeline.execute()
    return tuple(int(answer or 0) for answer in answers)
