"""What waits where, and since when: one bounded look at each store, for the metrics."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from psycopg_pool import AsyncConnectionPool

from sinks.pool import borrow
from sinks.statement import statement
from streams import gauges, inbound
from streams.keys import LIVE
from streams.pace import EPOCH
from streams.transit import Transit

BATCH = "batch"
COUNTED = 10_000
"""How many rows of one kind are counted at most: a look must not become slower the longer a partner is away."""

Labels = tuple[str, ...]

_LIMIT = {"limit": COUNTED}


@dataclass(frozen=True, slots=True)
class Backlog:
    """Numbers by their labels, as `madeira/metrics.py` lists these; ages in seconds. Empty: not known."""

    waiting: Mapping[Labels, float] = field(default_factory=dict)
    oldest_s: Mapping[Labels, float] = field(default_factory=dict)
    inbound: Mapping[Labels, float] = field(default_factory=dict)
    inbound_oldest_s: Mapping[Labels, float] = field(default_factory=dict)
    dead: Mapping[Labels, float] = field(default_factory=dict)
    unroutable: Mapping[Labels, float] = field(default_factory=dict)
    conflicts: Mapping[Labels, float] = field(default_factory=dict)
    broken: Mapping[Labels, float] = field(default_factory=dict)

    def with_(self, other: Backlog) -> Backlog:
        """Both looks as one; the older of two ages."""
        oldest = dict(self.oldest_s)
        for labels, age in other.oldest_s.items():
            oldest[labels] = max(age, oldest.get(labels, 0.0))
        return Backlog(
            waiting={**self.waiting, **other.waiting},
            oldest_s=oldest,
            inbound={**self.inbound, **other.inbound},
            inbound_oldest_s={**self.inbound_oldest_s, **other.inbound_oldest_s},
            dead={**self.dead, **other.dead},
            unroutable={**self.unroutable, **other.unroutable},
            conflicts={**self.conflicts, **other.conflicts},
            broken={**self.broken, **other.broken},
        )


async def in_transit(transit: Transit, tenants: Mapping[str, str]) -> Backlog:
    """What Redis holds for the router and for each partner, given with its tenant. Raises `StoreUnavailable`."""
    now_s = await gauges.now_us(transit.redis) / 1e6
    depth = await inbound.depth(transit)
    keys = [transit.keys.partner(name, tenant) for name, tenant in tenants.items()]
    waiting: dict[Labels, float] = {}
    oldest: dict[Labels, float] = {}
    for name, found in zip(tenants, await gauges.waiting(transit, keys), strict=True):
        waiting[name, LIVE, "fed"], waiting[name, BATCH, "fed"] = found.live, found.batch
        for lane, since in ((LIVE, found.oldest_live), (BATCH, found.oldest_batch)):
            oldest[name, lane] = 0.0 if since is None else _age(now_s, (since - EPOCH).total_seconds())
    return Backlog(
        waiting=waiting,
        oldest_s=oldest,
        inbound={("redis",): depth.waiting},
        inbound_oldest_s={
            ("redis",): _age(now_s, now_s if depth.oldest_ms is None else depth.oldest_ms / 1e3)
        },
        broken={
            (name,): float(is_open)
            for name, is_open in zip(tenants, await gauges.breakers(transit, keys), strict=True)
        },
    )


async def in_record(pool: AsyncConnectionPool, partners: Collection[str]) -> Backlog:
    """What PostgreSQL holds for these partners and has not handed to Redis, and what somebody must look at.

    Of live deliveries it counts up to `COUNTED`, the longest waiting. Raises `StoreUnavailable`.
    """
    async with borrow(pool) as connection:
        await connection.execute(statement("pool/by_key"))
        names = {"partners": list(partners)}
        batches = await (await connection.execute(statement("metrics/unfed_batches"), names)).fetchall()
        live = await (await connection.execute(statement("metrics/unfed_live"), names | _LIMIT)).fetchall()
        dead = await (await connection.execute(statement("metrics/dead"), names)).fetchall()
        kept = await (await connection.execute(statement("metrics/kept"), _LIMIT)).fetchone()
    assert kept is not None, "an aggregate has a row"
    events, oldest_event_s, unroutable, conflicts = kept
    waiting: dict[Labels, float] = {}
    oldest: dict[Labels, float] = {}
    for name in partners:
        waiting[name, LIVE, "unfed"] = waiting[name, BATCH, "unfed"] = 0
    for name, lane, count, age_s in (*batches, *live):
        waiting[name, lane, "unfed"] += count
        oldest[name, lane] = max(age_s, oldest.get((name, lane), 0.0))
    return Backlog(
        waiting=waiting,
        oldest_s=oldest,
        inbound={("postgres",): events},
        inbound_oldest_s={("postgres",): oldest_event_s},
        dead={(name, cause): count for name, cause, count in dead},
        unroutable={(): unroutable},
        conflicts={(): conflicts},
    )


def _age(now_s: float, since_s: float) -> float:
    """Never below 0: the event's moment may have been another clock's."""
    return max(0.0, now_s - since_s)
