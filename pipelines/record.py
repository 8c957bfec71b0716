"""The recorder: what happened, from the outcome streams into PostgreSQL, each outcome exactly once.

Decision 6 of docs/architecture.md. How far a stream is recorded is committed together with what was recorded,
so a crash anywhere reads again and writes nothing twice.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

import psycopg
from psycopg import AsyncConnection
from psycopg.rows import TupleRow
from psycopg_pool import AsyncConnectionPool

from sinks.journal import Offset, write_down
from sinks.partner import Partner
from sinks.pool import borrow
from sinks.statement import statement
from streams import outcomes
from streams.checkpoint import checkpoint
from streams.errors import StaleGeneration, TransitLost
from streams.keys import PartnerKeys
from streams.outcomes import START, OutcomeEntry, Position
from streams.transit import Transit

log = logging.getLogger(__name__)

_LOOKED_AT = 50
"""How many idle streams one step checks for having lost their entries."""

_FORGET_CHUNK = 200
_FORGET_MOST = 100_000


@dataclass(frozen=True, slots=True)
class _Mark:
    """Everything up to `last` was committed before `at`."""

    at: datetime
    last: str


class Recorder:
    """Writes what the outcome streams hold. Several may run: one works, the others find nothing to do."""

    def __init__(self, pool: AsyncConnectionPool, transit: Transit, partners: Mapping[str, Partner]) -> None:
        self._pool = pool
        self._transit = transit
        self._partners = partners
        self._told: dict[tuple[str, int], str] = {}
        self._marks: dict[tuple[str, int], deque[_Mark]] = {}
        self._next_look = 0

    async def introduce(self, names: Collection[str], generation: int) -> None:
        """Make the offsets of these partners' outcome streams of `generation`, where they are missing."""
        partners = [self._partners[name] for name in names]
        async with borrow(self._pool) as connection:
            await connection.execute(
                statement("record/introduce"),
                {
                    "generation": generation,
                    "partners": [partner.name for partner in partners],
                    "tenants": [partner.tenant for partner in partners],
                },
            )

    async def step(self, limit: int = 2000) -> int:
        """Record about `limit` outcomes over all partners and generations; returns how many were read.

        0 also where another recorder is at it. Raises `StoreUnavailable`, and `TransitLost` where a stream of
        the current generation ends before what is recorded of it.
        """
        return await self._step(limit, below=None, patient=False)

    async def drain(self, generation_below: int | None) -> int:
        """Record streams of generations below this one (None: all) to their ends; returns how many outcomes.

        Call it when the older generations are fenced, so that their streams no longer grow.
        """
        drained = 0
        while count := await self._step(5000, below=generation_below, patient=True):
            drained += count
        return drained

    async def forget(self, now: datetime, after: timedelta = timedelta(seconds=60)) -> int:
        """Let Redis forget what was committed `after` ago or earlier; returns how many outcomes it forgot.

        What this recorder finds committed counts from the first call that sees it, so never too early.
        """
        async with borrow(self._pool) as connection:
            offsets = await _offsets(connection)
        forgotten = 0
        seen = {}
        for offset in offsets:
            if not offset.current or offset.last == START:
                continue
            key = (offset.partner, offset.generation)
            marks = seen[key] = self._marks.get(key) or deque()
            if not marks or marks[-1].last != offset.last:
                marks.append(_Mark(now, offset.last))
            while len(marks) > 1 and marks[1].at <= now - after:
                marks.popleft()
            if marks[0].at <= now - after:
                forgotten += await self._forget(offset, marks[0].last)
        self._marks = seen
        return forgotten

    async def _forget(self, offset: Offset, upto: str) -> int:
        forgotten = 0
        try:
            while forgotten < _FORGET_MOST:
                count = await self._transit.scripts.forget(
                    self._keys(offset), generation=offset.generation, upto=upto, limit=_FORGET_CHUNK
                )
                forgotten += count
                if count < _FORGET_CHUNK:
                    break
        except StaleGeneration:
            pass  # recovery is on its way; it drops all of this
        return forgotten

    async def ensure_partitions(self, now: datetime) -> int:
        """Make the log's partitions of this month and the next where missing; returns how many it made.

        A month of which the default partition already holds rows stays there.
        """
        made = 0
        month = now.replace(day=1, hour=0, minute=0, second=0, microsecond=0)
        for _ in range(2):
            following = (month + timedelta(days=32)).replace(day=1)
            made += await self._ensure_partition(month, following)
            month = following
        return made

    async def _ensure_partition(self, month: datetime, following: datetime) -> int:
        async with borrow(self._pool) as connection:
            cursor = await connection.execute(
                statement("record/make_partition"),
                {"name": f"delivery_log_{month:%Y_%m}", "month": month, "following": following},
            )
            row = await cursor.fetchone()
            if row is None:
                return 0
            try:
                async with connection.transaction():
                    await connection.execute(row[0])
            except (psycopg.IntegrityError, psycopg.ProgrammingError) as error:
                # Rows of that month are in the default partition, or another process was faster.
                log.info(
                    "partition_skipped", extra={"fields": {"month": f"{month:%Y-%m}", "error": str(error)}}
                )
                return 0
        return 1

    async def _step(self, limit: int, *, below: int | None, patient: bool) -> int:
        async with borrow(self._pool) as connection:
            if not await _alone(connection, patient=patient):
                await connection.rollback()
                return 0
            found = await _offsets(connection)
            offsets = [o for o in found if below is None or o.generation < below]
            read = await self._read(offsets, limit)
            if not read:
                # Nothing was written: a rollback spares the disk a commit at every idle step.
                await connection.rollback()
            else:
                advanced = await _advance(connection, read)
                if advanced is None:
                    await connection.rollback()
                    return 0
                await write_down(connection, read)
                checkpoint("record-before-commit")
                await connection.commit()
                checkpoint("record-after-commit")
                offsets = advanced
        # Not only what was just committed: the one who committed may have died before it could tell.
        await self._tell(offsets)
        if not read:
            await self._look(offsets)
        return sum(len(entries) for _, entries in read)

    async def _read(
        self, offsets: Sequence[Offset], limit: int
    ) -> list[tuple[Offset, tuple[OutcomeEntry, ...]]]:
        if not offsets:
            return []
        positions = [
            Position(self._keys(offset).outcomes(offset.generation), offset.last) for offset in offsets
        ]
        fair = max(limit // len(offsets), 1)
        answers = await outcomes.read(self._transit.redis, positions, count=fair)
        # One busy stream among many quiet ones gets the quiet ones' share as well.
        left = limit - sum(len(answer) for answer in answers)
        full = [i for i, answer in enumerate(answers) if len(answer) == fair]
        result = {i: answer for i, answer in enumerate(answers) if answer}
        if full and left >= len(full):
            more = await outcomes.read(
                self._transit.redis,
                [Position(positions[i].stream, answers[i][-1].entry) for i in full],
                count=left // len(full),
            )
            for i, entries in zip(full, more, strict=True):
                result[i] = answers[i] + entries
        return [(offsets[i], entries) for i, entries in sorted(result.items())]

    async def _tell(self, offsets: Iterable[Offset]) -> None:
        """Say in `pace` how far the current generation is recorded, where that was not said yet."""
        for offset in offsets:
            key = (offset.partner, offset.generation)
            if not offset.current or offset.last == START or self._told.get(key) == offset.last:
                continue
            try:
                await self._transit.scripts.recorded(
                    self._keys(offset), generation=offset.generation, last=offset.last, counted=offset.counted
                )
            except StaleGeneration:
                continue
            self._told[key] = offset.last

    async def _look(self, offsets: Sequence[Offset]) -> None:
        """Raise `TransitLost` where ids began again below the offset: reading would wait for ever."""
        current = [offset for offset in offsets if offset.current and offset.last != START]
        if self._next_look >= len(current):
            self._next_look = 0
        some = current[self._next_look : self._next_look + _LOOKED_AT]
        self._next_look += _LOOKED_AT
        if not some:
            return
        lost = await outcomes.rewound(
            self._transit.redis,
            [Position(self._keys(offset).outcomes(offset.generation), offset.last) for offset in some],
        )
        if lost:
            raise TransitLost(f"{lost[0]} ends before what is recorded of it")

    def _keys(self, offset: Offset) -> PartnerKeys:
        return self._transit.keys.partner(offset.partner, offset.tenant)


async def _alone(connection: AsyncConnection[TupleRow], *, patient: bool) -> bool:
    """Whether this transaction is the one that records; `patient` waits for the other to end.

    It only saves work: what keeps an outcome from being recorded twice is the offset.
    """
    cursor = await connection.execute(statement("record/wait_turn" if patient else "record/take_turn"))
    row = await cursor.fetchone()
    return row is not None and row[0] is not False


async def _offsets(connection: AsyncConnection[TupleRow]) -> list[Offset]:
    cursor = await connection.execute(statement("record/offsets"))
    return [Offset(*row) for row in await cursor.fetchall()]


async def _advance(
    connection: AsyncConnection[TupleRow], read: Sequence[tuple[Offset, tuple[OutcomeEntry, ...]]]
) -> list[Offset] | None:
    """Move the offsets past what was read; None where one of them is no longer where it was."""
    cursor = await connection.execute(
        statement("record/advance"),
        {
            "partners": [offset.partner for offset, _ in read],
            "generations": [offset.generation for offset, _ in read],
            "befores": [offset.last for offset, _ in read],
            "lasts": [entries[-1].entry for _, entries in read],
            "counts": [len(entries) for _, entries in read],
        },
    )
    if cursor.rowcount != len(read):
        return None
    return [
        Offset(
            offset.partner,
            offset.tenant,
            offset.generation,
            entries[-1].entry,
            offset.counted + len(entries),
            offset.current,
        )
        for offset, entries in read
    ]
