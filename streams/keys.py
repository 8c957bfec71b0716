"""Every Redis key that Madeira uses, with its type and lifetime. Nobody else spells one.

All keys of a partner carry the hash tag `{tenant.partner}`, so each script touches one cluster slot.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from zlib import crc32

GROUP = "senders"
"""The one consumer group of every lane."""

ROUTERS = "routers"
"""The one consumer group of every inbound shard."""

SHARDS = 1
"""Inbound streams. More than one only helps a cluster: each costs every flush of the intake another script call.
Never lowered while anything waits in the last ones."""


@dataclass(frozen=True, slots=True)
class PartnerKeys:
    """The keys of one partner. `base` is `prefix:{tenant.partner}`."""

    base: str

    @property
    def pace(self) -> str:
        """Hash, for ever: generation, state, interval, tat, pauses and the counters that take checks."""
        return f"{self.base}:pace"

    @property
    def lanes(self) -> str:
        """Sorted set of the lane names that exist (`batch:7`), by the order in which they are drained."""
        return f"{self.base}:lanes"

    @property
    def open(self) -> str:
        """Hash: delivery → where it is (`lane/entry`, `delay:60/entry`; `cancel:<number>:lane/entry` where it was
        cancelled in a hand), or `done:<attempt_id>`, `done:cancel/<number>`."""
        return f"{self.base}:open"

    @property
    def delays(self) -> str:
        """Sorted set of the delay streams that are not empty, by their head's due time in ms."""
        return f"{self.base}:delays"

    @property
    def dead(self) -> str:
        """Stream, capped: a quick look at the dead; PostgreSQL is what is read for work."""
        return f"{self.base}:dead"

    def lane(self, name: str) -> str:
        """Stream of waiting deliveries: `live`, `batch:<n>` or `batch:<n>:returns`. Until recovered."""
        return f"{self.base}:{name}"

    def delay(self, seconds: int) -> str:
        """Stream of deliveries that wait this long, due in the order of their entries."""
        return f"{self.base}:delay:{seconds}"

    def outcomes(self, generation: int) -> str:
        """Stream of what happened, read by the recorder; trimmed 60 s after PostgreSQL has it."""
        return f"{self.base}:outcomes:{generation}"

    @property
    def every(self) -> str:
        """Pattern over all keys of this partner, for SCAN in recovery."""
        escaped = self.base.replace("[", r"\[").replace("]", r"\]").replace("*", r"\*").replace("?", r"\?")
        return f"{escaped}:*"


LIVE = "live"


def batch_lane(batch_id: int) -> str:
    """Lane name of a batch's own stream; its entry ids are `1-<row number>`."""
    return f"batch:{batch_id}"


def returns_lane(batch_id: int) -> str:
    """Lane name of what comes back to a batch: from a delay, a sweep or a worker that left."""
    return f"batch:{batch_id}:returns"


@dataclass(frozen=True, slots=True)
class InboundKeys:
    """The keys of one inbound shard. `base` is `prefix:{in:shard}`, which is the stream itself."""

    base: str

    @property
    def stream(self) -> str:
        """Stream of events that no router has dealt with yet; a routed one is deleted."""
        return self.base

    def seen(self, source: str, event_id: str) -> str:
        """String with the source's `remember` as expiry: an accepted event's body hash and trace id."""
        return f"{self.base}:seen:{source}:{event_id}"


@dataclass(frozen=True, slots=True)
class Keys:
    """All keys below one prefix."""

    prefix: str = "madeira"

    def partner(self, name: str, tenant: str = "default") -> PartnerKeys:
        """Keys of one partner."""
        return PartnerKeys(f"{self.prefix}:{{{tenant}.{name}}}")

    @property
    def inbound(self) -> tuple[InboundKeys, ...]:
        """Every inbound shard."""
        return _inbound(self.prefix)

    def inbound_of(self, source: str, event_id: str) -> InboundKeys:
        """The shard to which an event always comes."""
        shards = _inbound(self.prefix)
        return shards[0 if len(shards) == 1 else crc32(f"{source}:{event_id}".encode()) % len(shards)]

    def worker(self, worker: str) -> str:
        """String with a 15 s expiry: the lease of one worker. Gone means dead; it is never renewed then."""
        return f"{self.prefix}:worker:{worker}"


@cache
def _inbound(prefix: str) -> tuple[InboundKeys, ...]:
    return tuple(InboundKeys(f"{prefix}:{{in:{shard}}}") for shard in range(SHARDS))
