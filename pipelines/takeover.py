"""Takeover: what a dead worker had in hand becomes an Unknown attempt, never a silent second send."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta

from psycopg_pool import AsyncConnectionPool

from pipelines.attempt import Hand, legible, policy_of, settle_takeover
from pipelines.dispatch import Meter
from sinks.partner import Partner
from sinks.pool import borrow
from sinks.statement import statement
from streams import gauges, lanes, leases, outcomes
from streams.errors import StaleGeneration
from streams.pace import from_us
from streams.transit import Transit

log = logging.getLogger(__name__)

_AT_MOST = 200


@dataclass(frozen=True, slots=True)
class _Outcomes:
    """Where each partner's outcome stream of a generation ended."""

    generation: int
    ends: Mapping[str, str]


class Takeover:
    """Looks for consumers whose lease is gone and settles what they left."""

    def __init__(
        self,
        pool: AsyncConnectionPool,
        transit: Transit,
        partners: Mapping[str, Partner],
        *,
        meter: Meter | None = None,
    ) -> None:
        self._meter = meter
        self._pool = pool
        self._transit = transit
        self._partners = partners
        self._quiet: dict[str, _Outcomes] = {}
        """Dead workers of whom nothing is pending, with what there was to record when that was first seen."""

    async def step(self, *, worker: str, generation: int) -> int:
        """Settle dead workers' entries that are idle for longer than a request can take; returns how many."""
        taken = 0
        for partner in tuple(self._partners.values()):
            taken += await self._take_over(partner, worker=worker, generation=generation)
        await self._end_silent(generation)
        return taken

    async def _take_over(self, partner: Partner, *, worker: str, generation: int) -> int:
        keys = self._transit.keys.partner(partner.name, partner.tenant)
        entries = await leases.claim_from_dead(
            self._transit,
            keys,
            generation=generation,
            reaper=worker,
            min_idle=partner.timeout + timedelta(seconds=1),
            limit=_AT_MOST,
        )
        if not entries:
            return 0
        policy = policy_of(partner)
        now = from_us(await gauges.now_us(self._transit.redis))
        ended = [
            settle_takeover(Hand(partner, policy, entry, envelope, generation, worker), now)
            for entry in entries
            if (envelope := legible(partner, entry)) is not None
        ]
        await self._transit.scripts.settle(
            keys, generation=generation, settlements=[each.settlement for each in ended]
        )
        if self._meter is not None:
            for each in ended:
                self._meter.settled(partner.name, each.settlement.place.lane, each.attempt)
        log.warning("taken_over", extra={"fields": {"partner": partner.name, "entries": len(entries)}})
        return len(entries)

    async def _end_silent(self, generation: int) -> None:
        """Close the record of workers that are gone, of whom nothing is pending, and whose ends are recorded.

        Raises `StaleGeneration` where nothing is pending because Redis was emptied: then they stay suspects.
        """
        async with borrow(self._pool) as connection:
            cursor = await connection.execute(statement("worker/silent"), {"lease": leases.LEASE})
            silent = [row[0] for row in await cursor.fetchall()]
        gone = set(silent) - await leases.alive(self._transit, silent)
        self._quiet = {worker: seen for worker, seen in self._quiet.items() if worker in gone}
        for worker in gone:
            if await self._has_pending(worker):
                self._quiet.pop(worker, None)
                continue
            await self._require_intact(generation)
            seen = self._quiet.get(worker)
            if seen is None or seen.generation != generation:
                seen = self._quiet[worker] = await self._outcomes(generation)
            if await self._recorded(seen):
                async with borrow(self._pool) as connection:
                    await connection.execute(statement("worker/end"), {"id": worker})

    async def _outcomes(self, generation: int) -> _Outcomes:
        ends = {}
        for name, partner in tuple(self._partners.items()):
            keys = self._transit.keys.partner(partner.name, partner.tenant)
            ends[name] = await outcomes.end(self._transit.redis, keys.outcomes(generation))
        return _Outcomes(generation, ends)

    async def _recorded(self, seen: _Outcomes) -> bool:
        """Whether PostgreSQL has them: what a takeover settled and Redis loses is otherwise nobody's to hand in."""
        async with borrow(self._pool) as connection:
            cursor = await connection.execute(statement("recover/offsets"), {"generation": seen.generation})
            recorded: dict[str, str] = dict(await cursor.fetchall())
        return all(
            outcomes.order(end) <= outcomes.order(recorded.get(name, outcomes.START))
            for name, end in seen.ends.items()
        )

    async def _require_intact(self, generation: int) -> None:
        """That what was just looked at is all there. Recovery sees the same, but perhaps only after us."""
        for partner in tuple(self._partners.values()):
            keys = self._transit.keys.partner(partner.name, partner.tenant)
            pace = (await gauges.gauge(self._transit, keys)).generation
            if pace != generation or not await lanes.groups_intact(self._transit, keys):
                raise StaleGeneration(f"{keys.pace} or a lane is missing or of another generation")

    async def _has_pending(self, worker: str) -> bool:
        """Whether anything of this worker is in a hand: in its own, or claimed by whoever is taking over."""
        for partner in tuple(self._partners.values()):
            keys = self._transit.keys.partner(partner.name, partner.tenant)
            hands = await lanes.hands(self._transit, keys)
            if worker in hands or any(map(leases.is_reaper, hands)):
                return True
        return False
