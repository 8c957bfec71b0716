"""Replay: dead deliveries on their way again, as the rows of a batch of their own.

Decision 17 of docs/architecture.md. Choosing, moving to pending and the new batch are one commit: killed anywhere,
nothing or all of it happened, and a second click finds none. From then on they are rows of a batch: the feeder keeps
their order, the pace its promise, recovery feeds again what is not over. The manifest of the batch that loaded them
stays as it was.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import date

from psycopg_pool import AsyncConnectionPool

from pipelines import deliveries
from pipelines.dead_letters import Connection, Filter, Sums, as_detail, audit, chosen, sums
from pipelines.route import Addressed, Route, Rules
from sinks.partner import Partner
from sinks.statement import statement
from streams.checkpoint import checkpoint
from streams.delivery import MOVES, Move
from streams.inbound import Inbound

log = logging.getLogger(__name__)

JOB = "replay"
"""The job of every batch that a replay makes; no `[[jobs]]` may be called so."""

NO_PARTNER = "jobs.toml has no partner of that name"
CANCELLING = "a cancellation is under way"
CONFIRM_FIRST = "may have arrived, and the partner is not idempotent: ask it, then madeira dead resolve"
MAY_HAVE_ARRIVED = "may have arrived, so only the original bytes can go again: replay it with --original"

_ROUTED = 200
_TURN = 50


@dataclass(frozen=True, slots=True)
class Replayed:
    """What a replay did, or with `batch_id` None would do: what it moves, and what it leaves and why."""

    sums: tuple[Sums, ...]
    batch_id: int | None = None
    revision: int | None = None
    count: int = 0


class Replay:
    """Chooses dead deliveries and moves them. `confirm_first` are partners that take no key twice as once."""

    def __init__(
        self,
        pool: AsyncConnectionPool,
        partners: Mapping[str, Partner],
        routes: Sequence[Route] = (),
        *,
        confirm_first: Collection[str] = (),
    ) -> None:
        self._pool = pool
        self._partners = dict(partners)
        self._rules = Rules(routes, partners)
        self._confirm_first = sorted(confirm_first)

    async def replay(
        self,
        which: Filter,
        *,
        today: date,
        who: str,
        why: str = "",
        current_route: bool = False,
        dry_run: bool = False,
    ) -> Replayed:
        """Move what `which` means to pending, in one transaction with an audit row; `dry_run` writes nothing.

        `current_route`: bodies and addresses of live events as today's routes make them, where nothing may have
        arrived; an event that they no longer send to its partner stays dead. Raises `StoreUnavailable`.
        """
        async with chosen(self._pool, which, pick="dead/pick") as connection:
            await connection.execute(
                statement("dead/leave_out"),
                {
                    "partners": list(self._partners),
                    "confirm_first": self._confirm_first,
                    "current_route": current_route,
                    "no_partner": NO_PARTNER,
                    "cancelling": CANCELLING,
                    "confirm": CONFIRM_FIRST,
                    "may_have": MAY_HAVE_ARRIVED,
                },
            )
            if current_route:
                await self._route_anew(connection)
            found = await sums(connection)
            moved = None if dry_run else await self._move(connection, today)
            if moved is None:
                await connection.rollback()
                return Replayed(found, count=sum(each.count for each in found if not each.left_out))
            batch, revision, count = moved
            await audit(
                connection, "dead replay", which, who=who, why=why,
                batch=batch, count=count, current_route=current_route, sums=as_detail(found),
            )  # fmt: skip
            checkpoint("replay-before-commit")
        checkpoint("replay-after-commit")
        log.info("replayed", extra={"fields": {"batch": batch, "count": count, "who": who}})
        return Replayed(found, batch, revision, count)

    async def _move(self, connection: Connection, today: date) -> tuple[int, int, int] | None:
        """Batch, revision and count; None where nothing is left to be moved."""
        cursor = await connection.execute(statement("dead/replay_batch"), {"job": JOB, "day": today})
        row = await cursor.fetchone()
        if row is None:
            return None
        batch, revision, count = row
        await connection.execute(
            statement("dead/replay_partners"),
            {
                "batch": batch,
                "partners": list(self._partners),
                "tenants": [partner.tenant for partner in self._partners.values()],
            },
        )
        moved = await connection.execute(
            statement("dead/replay"),
            {
                "batch": batch,
                "may_replay": [state.value for state, moves in MOVES.items() if Move.REPLAY in moves],
            },
        )
        assert moved.rowcount == count, "what was chosen is locked"
        return batch, revision, count

    async def _route_anew(self, connection: Connection) -> None:
        after, seen = 0, 0
        while events := await deliveries.chosen(connection, after=after, limit=_ROUTED):
            after = events[-1][0]
            cursor = await connection.execute(
                statement("dead/partners_of"), {"events": [number for number, _ in events]}
            )
            wanted: list[tuple[int, str]] = list(await cursor.fetchall())
            made: dict[tuple[int, str], Addressed] = {}
            for number, event in events:
                made |= {(number, to.partner): to for to in self._routed(event)}
                seen += 1
                if seen % _TURN == 0:
                    await asyncio.sleep(0)
            await _write(connection, wanted, made)

    def _routed(self, event: Inbound) -> tuple[Addressed, ...]:
        try:
            return self._rules.route(event).deliveries
        except (ArithmeticError, LookupError, RecursionError, TypeError, ValueError):
            return ()  # as the router does: one event stops no others


async def _write(
    connection: Connection, wanted: Sequence[tuple[int, str]], made: Mapping[tuple[int, str], Addressed]
) -> None:
    found = [(event, made[event, partner]) for event, partner in wanted if (event, partner) in made]
    none = [pair for pair in wanted if pair not in made]
    await connection.execute(
        statement("dead/reshape"),
        {
            "events": [event for event, _ in found],
            "partners": [to.partner for _, to in found],
            "target_uris": [to.target_uri for _, to in found],
            "bodies": [to.body for _, to in found],
        },
    )
    await connection.execute(
        statement("dead/no_route"),
        {
            "why": "no route sends it there today",
            "events": [event for event, _ in none],
            "partners": [partner for _, partner in none],
        },
    )
