"""Which moment of this process is which microsecond of Redis `TIME`: the slots' clock, mapped.

Every slot is a time on Redis's clock; a worker has to act on it by its own. Each reply that carries `TIME`
bounds the difference between the two: it lies between what it would be had the clock been read at the moment
of asking and at the moment of the answer. Intersecting those bounds leaves the narrowest one seen, and a
slow event loop can't widen it.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
DRIFT_PER_SECOND = 200e-6
"""How far two clocks may run apart in a second; twice what ordinary quartz does."""


@dataclass(frozen=True, slots=True)
class ClockMap:
    """Redis's clock minus this process's monotonic one, in seconds, as bounds. Empty at first."""

    low: float = float("-inf")
    high: float = float("inf")
    seen_at: float = 0.0

    def narrowed(self, *, asked: float, answered: float, redis_us: int) -> ClockMap:
        """The map after a reply that said `redis_us`, asked and answered at these monotonic seconds.

        Bounds that contradict the reply mean that a clock was stepped: then only the reply counts.
        """
        redis_s = redis_us / 1e6
        low, high = redis_s - answered, redis_s - asked
        drift = max(0.0, answered - self.seen_at) * DRIFT_PER_SECOND
        kept_low, kept_high = self.low - drift, self.high + drift
        if low > kept_high or high < kept_low:
            return ClockMap(low, high, answered)
        return ClockMap(max(low, kept_low), min(high, kept_high), answered)

    @property
    def offset(self) -> float:
        """The best guess: the middle of the bounds."""
        return (self.low + self.high) / 2

    def local(self, redis_us: int) -> float:
        """The monotonic second at which Redis's clock shows `redis_us`."""
        return redis_us / 1e6 - self.offset

    def redis(self, local: float) -> datetime:
        """What Redis's clock showed at the monotonic second `local`, as UTC."""
        return EPOCH + timedelta(seconds=local + (self.low + self.high) / 2)


def from_us(redis_us: int) -> datetime:
    """Microseconds since 1970 as UTC."""
    return EPOCH + timedelta(microseconds=redis_us)


def to_ms(moment: datetime) -> int:
    """UTC as milliseconds since 1970, rounded up so that nothing is ever early."""
    return -((EPOCH - moment) // timedelta(milliseconds=1))
