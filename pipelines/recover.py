"""Recovery: how Redis and PostgreSQL come to agree again after Redis was restarted, emptied or replaced.

Decision 5 of docs/architecture.md, in its order: raise the generation, fence every partner, record what is
left, wait for the workers to hand in, mark what may have been sent, drop transit, open. The recovery lock is
held throughout on a connection of its own; a crash begins again with a higher number. It is walked at every
Redis restart and at the very first start, so it is never rusty.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Set
from dataclasses import dataclass
from datetime import timedelta
from typing import Protocol

import msgspec
from psycopg import AsyncConnection, AsyncCursor
from psycopg.rows import TupleRow
from psycopg_pool import AsyncConnectionPool

from sinks.partner import Partner
from sinks.pool import borrow
from sinks.statement import statement
from streams import gauges, lanes, leases
from streams.checkpoint import checkpoint
from streams.errors import StaleGeneration
from streams.keys import LIVE, PartnerKeys, batch_lane
from streams.outcomes import START, Position, rewound
from streams.transit import Transit

log = logging.getLogger(__name__)

_ASK_AGAIN_S = 0.2


class Drains(Protocol):
    """What recovery needs of the recorder."""

    async def drain(self, generation_below: int | None) -> int:
        """Record every outcome that older generations (None: all) still hold; returns how many."""


@dataclass(frozen=True, slots=True)
class Generation:
    """PostgreSQL's word on what Redis must carry."""

    number: int
    recovering: bool
    run_id: str
    suspects: str


class _Losses(msgspec.Struct, frozen=True):
    """Kept in `generation.suspects`, so that a crash in the middle does not forget what was seen at its start."""

    lost: tuple[str, ...] = ()
    marked: bool = False
    restored: bool = False
    """Redis was ahead of PostgreSQL, which therefore comes from an older copy."""
    opened: int = 0
    """The generation that was last open: what was handed to Redis in it may have been sent."""


@dataclass(frozen=True, slots=True)
class Recovered:
    """What one recovery did."""

    generation: int
    reason: str
    suspects: int
    lost: tuple[str, ...]


async def read_generation(pool: AsyncConnectionPool) -> Generation:
    """The generation row as PostgreSQL has it now."""
    async with borrow(pool) as connection:
        return await _read(connection)


async def _read(connection: AsyncConnection[TupleRow]) -> Generation:
    cursor = await connection.execute(statement("recover/read"))
    row = await cursor.fetchone()
    assert row is not None, "the migration inserts this row"
    return Generation(number=row[0], recovering=row[1] == "recovering", run_id=row[2], suspects=row[3])


_Partners = Mapping[str, Partner]


class Recovery:
    """Watches whether Redis is what PostgreSQL thinks it is, and walks the recovery where it is not."""

    def __init__(
        self,
        pool: AsyncConnectionPool,
        transit: Transit,
        partners: Mapping[str, Partner],
        recorder: Drains,
        *,
        wait: Callable[[float], Awaitable[None]],
    ) -> None:
        self._pool = pool
        self._transit = transit
        self._partners = partners
        self._recorder = recorder
        self._wait = wait

    def _keys(self, partner: Partner) -> PartnerKeys:
        return self._transit.keys.partner(partner.name, partner.tenant)

    async def step(self) -> Recovered | None:
        """Recover if that is needed and nobody else is at it; make new partners known. None: nothing was done."""
        if await self.needed() is None:
            return None
        async with borrow(self._pool) as holder:
            if await (await holder.execute(statement("recover/lock"))).fetchone() is None:
                return None
            # As they are now, to the end: one that comes meanwhile is new to the next step.
            partners = dict(self._partners)
            reason = await self._needed(partners)  # whoever held the lock before may have done it
            if reason is None:
                return None
            if reason == "new partner":
                await self._introduce(partners)
                return None
            return await self._recover(reason, holder, partners)

    async def needed(self) -> str | None:
        """Why recovery is due, in a few words; None where Redis is as PostgreSQL has it."""
        return await self._needed(dict(self._partners))

    async def _needed(self, partners: _Partners) -> str | None:
        async with borrow(self._pool) as connection:
            generation = await _read(connection)
            cursor = await connection.execute(statement("recover/known_partners"))
            known = {row[0] for row in await cursor.fetchall()}
            gone = await self._rewound(connection, generation.number, partners)
        if generation.recovering:
            return "an earlier recovery did not finish"
        if generation.run_id != await gauges.run_id(self._transit.redis):
            return "Redis was started anew" if generation.run_id else "first start"
        if not await self._transit.scripts.let_in():
            return "Redis does not have this version's scripts"
        unknown = False
        for partner in partners.values():
            found = (await gauges.gauge(self._transit, self._keys(partner))).generation
            if partner.name not in known:
                unknown = True
            elif found != generation.number:
                return f"pace of {partner.name} is missing or of another generation"
            elif not await lanes.groups_intact(self._transit, self._keys(partner)):
                return f"a consumer group of {partner.name} is missing"
        if gone:
            return f"outcomes of {', '.join(gone)} end before what is recorded of them"
        return "new partner" if unknown else None

    async def _rewound(
        self, connection: AsyncConnection[TupleRow], number: int, partners: _Partners
    ) -> list[str]:
        """Partners whose outcome stream lost what PostgreSQL has read of it: gone, or from an older snapshot."""
        cursor = await connection.execute(statement("recover/offsets"), {"generation": number})
        read = [(name, last) for name, last in await cursor.fetchall() if name in partners and last != START]
        streams = {self._keys(partners[name]).outcomes(number): (name, last) for name, last in read}
        positions = [Position(stream, last) for stream, (_, last) in streams.items()]
        return [streams[stream][0] for stream in await rewound(self._transit.redis, positions)]

    async def _introduce(self, partners: _Partners) -> None:
        """Give partners that jobs.toml has and PostgreSQL does not the current generation, and open them."""
        async with borrow(self._pool) as connection:
            generation = await _read(connection)
            cursor = await connection.execute(statement("recover/known_partners"))
            known = {row[0] for row in await cursor.fetchall()}
            new = [partner for name, partner in partners.items() if name not in known]
            paused = await _paused(connection)
            for partner in new:
                gauge = await gauges.gauge(self._transit, self._keys(partner))
                if gauge.generation == generation.number and gauge.state == "open":
                    continue  # an earlier introduction came as far as this, and was not committed
                await self._fence(partner, generation.number)
                # Known once, removed from jobs.toml, and back: what it had in transit then is gone for good.
                await _suspect_fed(connection, partner.name, since=0)
                await lanes.drop_transit(self._transit, self._keys(partner))
                await self._open(partner, generation.number, paused)
            # Last: a crash before this leaves them new, and the next one begins again.
            await _make_known(connection, new, generation.number)
        log.info("partners_introduced", extra={"fields": {"partners": [partner.name for partner in new]}})

    async def _recover(
        self, reason: str, holder: AsyncConnection[TupleRow], partners: _Partners
    ) -> Recovered:
        run_id = await gauges.run_id(self._transit.redis)
        losses, number, there = await self._begin(partners)
        log.warning(
            "recovery_started",
            extra={"fields": {"generation": number, "reason": reason, "lost": losses.lost}},
        )
        losses = await self._fence_all(losses, number, there, partners)
        checkpoint("recover-after-fence")

        await self._recorder.drain(number)
        await self._hand_in(number, holder, run_id)
        await self._recorder.drain(None)
        await self._still_there(run_id)

        suspects = 0 if losses.marked else await self._mark_suspects(losses, number, partners)
        await _still_mine(holder, number)
        for partner in partners.values():
            await lanes.drop_transit(self._transit, self._keys(partner))
        checkpoint("recover-after-drop")
        await self._forget_old_outcomes(number)

        await _still_mine(holder, number)
        async with borrow(self._pool) as connection:
            paused = await _paused(connection)
        for partner in partners.values():
            await self._open(partner, number, paused)
        # The one from the start: a server that was started anew since then needs a recovery of its own.
        async with borrow(self._pool) as connection:
            await connection.execute(statement("recover/finish"), {"run_id": run_id, "number": number})
        recovered = Recovered(generation=number, reason=reason, suspects=suspects, lost=losses.lost)
        log.warning("recovery_finished", extra={"fields": {"generation": number, "suspects": suspects}})
        return recovered

    async def _begin(self, partners: _Partners) -> tuple[_Losses, int, Set[str]]:
        """Raise the number in PostgreSQL, together with what can only be seen before anything is touched.

        Returns the losses, the number, and the partners that have a pace.
        """
        async with borrow(self._pool) as connection:
            before = await _read(connection)
            seen = msgspec.json.decode(before.suspects, type=_Losses) if before.suspects else _Losses()
            cursor = await connection.execute(statement("recover/offsets"), {"generation": before.number})
            offsets = {row[0] for row in await cursor.fetchall()}
            gone = await self._rewound(connection, before.number, partners)
            found, lost, there = before.number, set(seen.lost), set()
            for partner in partners.values():
                keys = self._keys(partner)
                gauge = await gauges.gauge(self._transit, keys)
                found = max(found, gauge.generation or 0)
                if gauge.generation is not None:
                    there.add(partner.name)
                if found > before.number:
                    # PostgreSQL was restored from before that generation: its outcomes are still to be recorded.
                    await _make_known(connection, [partner], found)
                if partner.name in offsets and not seen.marked:
                    # An earlier recovery that broke off may not have come as far as fencing this one.
                    known = gauge.generation is not None and (
                        before.recovering or gauge.generation >= before.number
                    )
                    if (
                        not known
                        or partner.name in gone
                        or not await lanes.groups_intact(self._transit, keys)
                    ):
                        lost.add(partner.name)
            losses = _Losses(
                lost=tuple(sorted(lost)),
                marked=seen.marked,
                restored=seen.restored or found > before.number,
                opened=seen.opened or before.number,
            )
            number = found + 1
            await connection.execute(
                statement("recover/begin"),
                {"number": number, "suspects": msgspec.json.encode(losses).decode()},
            )
            await _make_known(connection, partners.values(), number)
        return losses, number, there

    async def _fence_all(self, losses: _Losses, number: int, there: Set[str], partners: _Partners) -> _Losses:
        """Close every partner under `number`; one whose pace was `there` before and is not now is a loss, too."""
        fenced = {name: await self._fence(partner, number) for name, partner in partners.items()}
        gone = [name for name, before in fenced.items() if before is None and name in there]
        if not set(gone) - set(losses.lost):
            return losses
        losses = msgspec.structs.replace(losses, lost=tuple(sorted({*losses.lost, *gone})))
        async with borrow(self._pool) as connection:
            await connection.execute(
                statement("recover/marked"), {"suspects": msgspec.json.encode(losses).decode()}
            )
        return losses

    async def _hand_in(self, number: int, holder: AsyncConnection[TupleRow], run_id: str) -> None:
        """Wait until every living worker has settled all it had under `number`, or is silent for a lease.

        Asked on the lock's own connection: a session that is idle for long is ended, and the lock with it.
        """
        parameters = {"lease": leases.LEASE, "generation": number}
        while await _count(await holder.execute(statement("recover/waiting_for"), parameters)):
            await self._still_there(run_id)
            await self._wait(_ASK_AGAIN_S)

    async def _still_there(self, run_id: str) -> None:
        """Raise `StaleGeneration` where Redis was started anew meanwhile: what was handed in may be lost again."""
        if await gauges.run_id(self._transit.redis) != run_id:
            raise StaleGeneration("Redis was started anew in the middle of a recovery")

    async def _mark_suspects(self, losses: _Losses, number: int, partners: _Partners) -> int:
        """Flag what may have been sent without an outcome (decision 7); none where every worker handed in."""
        named = {
            partner.name: await lanes.suspects(self._transit, self._keys(partner), first=3 * partner.qps)
            for partner in partners.values()
            if partner.name not in losses.lost
        }
        marked = 0
        async with borrow(self._pool) as connection:
            cursor = await connection.execute(
                statement("recover/silent_workers"), {"lease": leases.LEASE, "generation": number}
            )
            silent = await cursor.fetchall()
            if losses.restored:
                for name in partners:
                    marked += (
                        await connection.execute(statement("recover/suspect_all"), {"partner": name})
                    ).rowcount
            elif silent:
                for name in losses.lost:
                    marked += await _suspect_fed(connection, name, since=losses.opened)
                for name, deliveries in named.items():
                    beyond = await self._live_beyond(connection, partners[name], since=losses.opened)
                    marked += await _suspect(connection, name, deliveries | beyond)
                    marked += await self._suspect_beyond(connection, partners[name])
            done = msgspec.json.encode(msgspec.structs.replace(losses, marked=True)).decode()
            await connection.execute(statement("recover/marked"), {"suspects": done})
        return marked

    async def _suspect_beyond(self, connection: AsyncConnection[TupleRow], partner: Partner) -> int:
        """Flag rows that were handed over behind the end of what Redis kept of their lane.

        Of the 3·Q that may have been sent meanwhile, those that are still unread there would have gone first.
        """
        keys, marked = self._keys(partner), 0
        cursor = await connection.execute(statement("recover/handed_over"), {"partner": partner.name})
        for batch, upto in await cursor.fetchall():
            lane = batch_lane(batch)
            kept = int((await lanes.last_id(self._transit, keys, lane)).partition("-")[2])
            most = 3 * partner.qps
            left = most - await lanes.unread(self._transit, keys, lane, most=most) if kept < upto else 0
            if left > 0:
                values = {"partner": partner.name, "batch": batch, "kept": kept, "upto": upto, "limit": left}
                marked += (await connection.execute(statement("recover/suspect_beyond"), values)).rowcount
        return marked

    async def _live_beyond(
        self, connection: AsyncConnection[TupleRow], partner: Partner, *, since: int
    ) -> frozenset[str]:
        """Live deliveries that were handed over and that Redis does not know: its last second is lost.

        None where what it kept would have kept the workers busy: that would have gone first.
        """
        keys, most = self._keys(partner), 3 * partner.qps
        if await lanes.unread(self._transit, keys, LIVE, most=most) >= most:
            return frozenset()
        cursor = await connection.execute(
            statement("recover/fed_live"), {"partner": partner.name, "since": since}
        )
        fed = [f"{source}:{event_id}" for source, event_id in await cursor.fetchall()]
        return await lanes.unknown(self._transit, keys, fed)

    async def _forget_old_outcomes(self, number: int) -> None:
        """Delete the outcome streams of older generations; every one of them was recorded to its end."""
        async with borrow(self._pool) as connection:
            cursor = await connection.execute(statement("recover/old_generations"), {"generation": number})
            for name, tenant, generation in await cursor.fetchall():
                await lanes.drop_outcomes(
                    self._transit, self._transit.keys.partner(name, tenant), generation=generation
                )
            await connection.execute(statement("recover/forget_offsets"), {"generation": number})

    async def _fence(self, partner: Partner, number: int) -> int | None:
        return await self._transit.scripts.fence(
            self._keys(partner), generation=number, guard_us=partner.guard // timedelta(microseconds=1)
        )

    async def _open(self, partner: Partner, number: int, paused: frozenset[str]) -> None:
        await self._transit.scripts.unfence(
            self._keys(partner),
            generation=number,
            interval_us=partner.interval_us,
            guard_us=partner.guard // timedelta(microseconds=1),
            max_in_flight=partner.max_in_flight,
            floor_percent=partner.batch_floor_percent,
            paused=partner.name in paused,
            breaker=partner.breaker,
        )


async def _make_known(
    connection: AsyncConnection[TupleRow], partners: Iterable[Partner], number: int
) -> None:
    listed = list(partners)
    await connection.execute(
        statement("recover/introduce"),
        {
            "generation": number,
            "partners": [partner.name for partner in listed],
            "tenants": [partner.tenant for partner in listed],
        },
    )


async def _still_mine(holder: AsyncConnection[TupleRow], number: int) -> None:
    """Raise `StaleGeneration` where another recovery went past ours, psycopg's error where the lock is lost.

    Dropping transit is no script that looks at the generation, so whoever drops must be the one who recovers.
    """
    if not await _count(await holder.execute(statement("recover/still_mine"), {"number": number})):
        raise StaleGeneration(f"another recovery went past generation {number}")


async def _count(cursor: AsyncCursor[TupleRow]) -> int:
    row = await cursor.fetchone()
    assert row is not None, "count(*) always answers"
    return int(row[0])


async def _paused(connection: AsyncConnection[TupleRow]) -> frozenset[str]:
    cursor = await connection.execute(statement("recover/paused"))
    return frozenset(row[0] for row in await cursor.fetchall())


async def _suspect_fed(connection: AsyncConnection[TupleRow], partner: str, *, since: int) -> int:
    """Flag what was handed to Redis, live deliveries in generation `since` or later, and has no outcome."""
    batches = await connection.execute(statement("recover/suspect_fed"), {"partner": partner})
    live = await connection.execute(
        statement("recover/suspect_fed_live"), {"partner": partner, "since": since}
    )
    return batches.rowcount + live.rowcount


async def _suspect(connection: AsyncConnection[TupleRow], partner: str, deliveries: frozenset[str]) -> int:
    pairs = [delivery.split(":", 1) for delivery in sorted(deliveries)]
    parameters = {
        "partner": partner,
        "sources": [source for source, _ in pairs],
        "event_ids": [event_id for _, event_id in pairs],
    }
    return (await connection.execute(statement("recover/suspect_named"), parameters)).rowcount
