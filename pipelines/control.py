"""Operators' intent: written to PostgreSQL first, and to Redis from there, again and again until they agree."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from psycopg_pool import AsyncConnectionPool

from sinks.partner import Partner
from sinks.pool import borrow
from sinks.statement import statement
from streams.transit import Transit


class Control:
    """Pauses and resumes partners."""

    def __init__(self, pool: AsyncConnectionPool, transit: Transit, partners: Mapping[str, Partner]) -> None:
        self._pool = pool
        self._transit = transit
        self._partners = partners

    async def set_paused(self, names: Sequence[str], *, paused: bool, who: str, why: str) -> None:
        """Record the intent with an audit row. `apply` carries it to Redis; any `work` process does so too."""
        async with borrow(self._pool) as connection:
            await connection.execute(
                statement("worker/set_control"),
                {"partners": list(names), "paused": paused, "who": who, "why": why},
            )

    async def apply(self, generation: int) -> int:
        """Make Redis follow the recorded intents; returns how many partners are paused."""
        async with borrow(self._pool) as connection:
            cursor = await connection.execute(statement("worker/controls"))
            intents: dict[str, bool] = dict(await cursor.fetchall())
        for name, paused in intents.items():
            if name in self._partners:
                partner = self._partners[name]
                keys = self._transit.keys.partner(partner.name, partner.tenant)
                await self._transit.scripts.pause(keys, generation=generation, paused=paused)
        return sum(intents.values())
