"""Takeover: what a dead worker had in hand becomes an Unknown attempt, never a silent second send."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from datetime import timedelta

from psycopg_pool import AsyncConnectionPool

from pipelines.attempt import Hand, policy_of, settle_takeover
from sinks.partner import Partner
from sinks.pool import borrow
from sinks.statement import statement
from streams import gauges, lanes, leases
from streams.envelope import decode
from streams.pace import from_us
from streams.transit import Transit

log = logging.getLogger(__name__)

_AT_MOST = 200


class Takeover:
    """Looks for consumers whose lease is gone and settles what they left."""

    def __init__(self, pool: AsyncConnectionPool, transit: Transit, partners: Mapping[str, Partner]) -> None:
        self._pool = pool
        self._transit = transit
        self._partners = partners

    async def step(self, *, worker: str, generation: int) -> int:
        """Settle dead workers' entries that are idle for longer than a request can take; returns how many."""
        taken = 0
        for partner in self._partners.values():
            taken += await self._take_over(partner, worker=worker, generation=generation)
        await self._end_silent()
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
        settlements = [
            settle_takeover(Hand(partner, policy, entry, decode(entry.envelope), generation, worker), now)
            for entry in entries
        ]
        await self._transit.scripts.settle(keys, generation=generation, settlements=settlements)
        log.warning("taken_over", extra={"fields": {"partner": partner.name, "entries": len(entries)}})
        return len(entries)

    async def _end_silent(self) -> None:
        """Close the record of workers that are gone and of whom nothing is pending any more."""
        async with borrow(self._pool) as connection:
            cursor = await connection.execute(statement("worker/silent"), {"lease": leases.LEASE})
            silent = [row[0] for row in await cursor.fetchall()]
        for worker in set(silent) - await leases.alive(self._transit, silent):
            if not await self._has_pending(worker):
                async with borrow(self._pool) as connection:
                    await connection.execute(statement("worker/end"), {"id": worker})

    async def _has_pending(self, worker: str) -> bool:
        for partner in self._partners.values():
            keys = self._transit.keys.partner(partner.name, partner.tenant)
            for consumer in (worker, leases.reaper_of(worker)):
                if await lanes.in_hand(self._transit, keys, worker=consumer):
                    return True
        return False
