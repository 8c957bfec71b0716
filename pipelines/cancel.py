"""Cancel: deliveries that shall not be sent any more, taken back wherever they are.

Decision 17 of docs/architecture.md. PostgreSQL has it first, so no feed adds them any more. Then Redis is told: what
waits goes, what is in a hand is flagged and ends there. Whoever asked returns when all of that has ended; whatever a
dead command left untold, a worker tells.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from time import monotonic
from typing import Protocol

from psycopg.rows import class_row
from psycopg_pool import AsyncConnectionPool

from pipelines.dead_letters import Filter, Sums, as_detail, audit, chosen, sums
from pipelines.feed import CHUNK
from pipelines.recover import read_generation
from sinks.partner import Partner
from sinks.pool import borrow
from sinks.statement import statement
from streams import gauges, outcomes
from streams.checkpoint import checkpoint
from streams.delivery import MOVES, Cause, Move
from streams.errors import StaleGeneration
from streams.moves import Withdrawn
from streams.transit import Transit

log = logging.getLogger(__name__)

RESOLVE_FIRST = "may have arrived: ask the partner, then madeira dead resolve"

_TOLD = 200
_ASK_AGAIN_S = 0.1


class Records(Protocol):
    """What cancelling needs of the recorder."""

    async def step(self, limit: int = 2000) -> int:
        """Record some outcomes; returns how many."""


@dataclass(frozen=True, slots=True)
class Became:
    """A delivery of a cancellation that is not cancelled: it was delivered after all, or may have been."""

    status: str
    key: str
    partner: str
    amount_minor: int | None
    currency: str | None
    last_error: str | None


@dataclass(frozen=True, slots=True)
class Cancelled:
    """What a cancellation did, or with `audit` None would do.

    `left` are deliveries, by partner, of which Redis could not say within the patience that they have ended; they are
    flagged, and not sent again. `became` are those that are not simply cancelled.
    """

    sums: tuple[Sums, ...]
    audit: int | None = None
    count: int = 0
    left: tuple[tuple[str, int], ...] = ()
    became: tuple[Became, ...] = ()


class Cancel:
    """Cancels. `step` is a worker's part: it tells Redis what a command could not."""

    def __init__(self, pool: AsyncConnectionPool, transit: Transit, partners: Mapping[str, Partner]) -> None:
        self._pool = pool
        self._transit = transit
        self._partners = partners

    async def cancel(
        self, which: Filter, *, dead: bool, who: str, why: str, dry_run: bool = False
    ) -> Cancelled:
        """Cancel in PostgreSQL what `which` means, with an audit row; `dry_run` writes nothing.

        `dead`: dead deliveries; otherwise those that are held, pending or retrying. What may have arrived is not
        cancelled: a waiting one becomes dead with the cause unknown, a dead one is left as it is. `settled` says
        when it has taken effect. Raises `StoreUnavailable`.
        """
        said = f"cancelled by {who}" + (f": {why}" if why else "")
        pick = "dead/pick" if dead else "cancel/pick"
        async with chosen(self._pool, which, pick=pick) as connection:
            await connection.execute(statement("cancel/leave_out"), {"resolve": RESOLVE_FIRST})
            found = await sums(connection)
            count = sum(each.count for each in found if not each.left_out)
            if dry_run or not count:
                await connection.rollback()
                return Cancelled(found, count=count)
            action = "dead cancel" if dead else "cancel"
            number = await audit(
                connection, action, which, who=who, why=why, count=count, sums=as_detail(found)
            )
            # Chosen while it locked them, so none of them has moved since.
            await connection.execute(statement("cancel/note"), {"audit": number})
            await connection.execute(
                statement("cancel/cancel"),
                {
                    "unknown": Cause.UNKNOWN,
                    "said": said,
                    "may_cancel": [state.value for state, moves in MOVES.items() if Move.CANCEL in moves],
                },
            )
            checkpoint("cancel-before-commit")
        checkpoint("cancel-after-commit")
        async with borrow(self._pool) as connection:
            await connection.execute(statement("dead/session"))
            await connection.execute(statement("cancel/never_fed"), {"audit": number, "chunk": CHUNK})
        log.info("cancelled", extra={"fields": {"audit": number, "count": count, "who": who}})
        return Cancelled(found, number, count)

    async def step(self, generation: int) -> int:
        """Tell Redis of what it was not told, once; returns how many are out of it now.

        What is in a hand is told again until it has ended. Raises `StaleGeneration` and `StoreUnavailable`.
        """
        done = 0
        async with borrow(self._pool) as connection:
            cursor = await connection.execute(statement("cancel/left"), {"audit": None})
            names = [name for name, _ in await cursor.fetchall()]
        for name in names:
            if name in self._partners:
                done += await self._tell(self._partners[name], generation)
        return done

    async def _tell(self, partner: Partner, generation: int) -> int:
        keys = self._transit.keys.partner(partner.name, partner.tenant)
        done, after = 0, 0
        while True:
            async with borrow(self._pool) as connection:
                cursor = await connection.execute(
                    statement("cancel/untold"), {"partner": partner.name, "after": after, "limit": _TOLD}
                )
                rows: list[tuple[int, str, int, str]] = list(await cursor.fetchall())
                if not rows:
                    return done
                after = rows[-1][0]
                found = await self._transit.scripts.cancel(
                    keys, generation=generation, deliveries=[(key, number) for _, _, number, key in rows]
                )
                if found is None:
                    return done
                checkpoint("cancel-after-told")
                out = [
                    row[0] for row, where in zip(rows, found, strict=True) if where is not Withdrawn.IN_HAND
                ]
                await connection.execute(statement("cancel/told"), {"events": out, "partner": partner.name})
                done += len(out)

    async def settled(
        self,
        cancelled: Cancelled,
        recorder: Records,
        *,
        patience: timedelta,
        wait: Callable[[float], Awaitable[None]],
    ) -> Cancelled:
        """Return when nothing of it can arrive any more and the record says what became of it, or patience ends."""
        deadline = monotonic() + patience.total_seconds()
        while True:
            generation = await read_generation(self._pool)
            if not generation.recovering:
                with suppress(StaleGeneration):
                    await self.step(generation.number)
            left = await self._left(cancelled.audit)
            if not left or monotonic() >= deadline:
                break
            await wait(_ASK_AGAIN_S)
        for name in {each.partner for each in cancelled.sums}:
            if name in self._partners:
                await self._recorded(self._partners[name], recorder, deadline, wait)
        async with (
            borrow(self._pool) as connection,
            connection.cursor(row_factory=class_row(Became)) as cursor,
        ):
            await cursor.execute(statement("cancel/became"), {"audit": cancelled.audit})
            became = tuple(await cursor.fetchall())
        return Cancelled(cancelled.sums, cancelled.audit, cancelled.count, tuple(left), became)

    async def _left(self, number: int | None) -> list[tuple[str, int]]:
        async with borrow(self._pool) as connection:
            cursor = await connection.execute(statement("cancel/left"), {"audit": number})
            return [(name, count) for name, count in await cursor.fetchall()]

    async def _recorded(
        self,
        partner: Partner,
        recorder: Records,
        deadline: float,
        wait: Callable[[float], Awaitable[None]],
    ) -> None:
        """Return when PostgreSQL has every outcome that is there now: one of them may be a success."""
        keys = self._transit.keys.partner(partner.name, partner.tenant)
        generation = (await gauges.gauge(self._transit, keys)).generation
        if generation is None:
            return
        upto = outcomes.order(await outcomes.end(self._transit.redis, keys.outcomes(generation)))
        while monotonic() < deadline:
            now = await gauges.gauge(self._transit, keys)
            # Of another generation: a recovery recorded all of this one before it opened that.
            if now.generation != generation or outcomes.order(now.recorded) >= upto:
                return
            if await recorder.step() == 0:
                await wait(_ASK_AGAIN_S)
