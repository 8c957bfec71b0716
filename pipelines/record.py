"""The recorder: what happened, from the outcome streams into PostgreSQL, each outcome exactly once.

Decision 6 of docs/architecture.md. How far a stream is recorded is committed together with what was recorded,
so a crash anywhere reads again and writes nothing twice.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

import msgspec
import psycopg
from psycopg import AsyncConnection
from psycopg.rows import TupleRow
from psycopg_pool import AsyncConnectionPool

from pipelines.attempt import WORKER_DIED
from sinks.partner import Partner
from sinks.pool import borrow
from sinks.statement import statement
from streams import outcomes
from streams.checkpoint import checkpoint
from streams.delivery import MOVES, Attempt, Kind, Move
from streams.errors import StaleGeneration, TransitLost
from streams.keys import PartnerKeys
from streams.outcomes import START, OutcomeEntry, Position, Timing
from streams.transit import Transit

log = logging.getLogger(__name__)

_LOOKED_AT = 50
"""How many idle streams one step checks for having lost their entries."""

_TURN = 50
"""Outcomes handled before sends get their turn: a worker that looks away for milliseconds misses its slots."""

_FORGET_CHUNK = 200
_FORGET_MOST = 100_000

_attempts = msgspec.msgpack.Decoder(Attempt)

_MAY_SUCCEED = [s.value for s, moves in MOVES.items() if {Move.SUCCEED, Move.LATE_SUCCESS} & moves.keys()]
_MAY_FAIL = [s.value for s, moves in MOVES.items() if {Move.RETRY, Move.GIVE_UP} <= moves.keys()]
_RULES = {"takeover": WORKER_DIED, "may_succeed": _MAY_SUCCEED, "may_fail": _MAY_FAIL}

_COLUMN_TYPES = (
    *("text", "text", "text", "text", "timestamptz", "int8", "int8", "text", "text", "timestamptz"),
    *("timestamptz", "int8", "int8", "text", "text", "bool", "bool", "text", "text", "text"),
    *("timestamptz", "bool", "int8"),
)

# What one outcome alone can cause: text or a number that PostgreSQL refuses, a value that can't be written.
_REFUSED = (psycopg.DataError, psycopg.IntegrityError, OverflowError, TypeError, ValueError)


@dataclass(frozen=True, slots=True)
class Offset:
    """How far one outcome stream is recorded. `current`: Redis is open and to carry this generation."""

    partner: str
    tenant: str
    generation: int
    last: str
    counted: int
    current: bool


class _Row(msgspec.Struct, frozen=True):
    """One outcome on its way in, with the stream and entry it came from."""

    offset: Offset
    entry: OutcomeEntry
    attempt: Attempt
    late: bool
    generation: int


class _Bad(msgspec.Struct, frozen=True):
    """One that can't be recorded."""

    offset: Offset
    entry: OutcomeEntry
    error: str


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
                await _write(connection, read)
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


async def _write(
    connection: AsyncConnection[TupleRow], read: Sequence[tuple[Offset, tuple[OutcomeEntry, ...]]]
) -> None:
    """Log and apply what was read; what can't be is put aside with its bytes."""
    rows: list[_Row] = []
    bad: list[_Bad] = []
    for offset, entries in read:
        for number, entry in enumerate(entries, start=1):
            if number % _TURN == 0:
                await asyncio.sleep(0)
            try:
                rows.append(_parsed(offset, entry))
            except (msgspec.MsgspecError, ValueError, IndexError) as error:
                bad.append(_Bad(offset, entry, f"{type(error).__name__}: {error}"))
    await connection.execute(statement("record/stage"))
    for round_ in rounds(rows):
        bad += await _written(connection, round_)
    for one in bad:
        await _quarantine(connection, one)


def _parsed(offset: Offset, entry: OutcomeEntry) -> _Row:
    attempt = _attempts.decode(entry.data)
    return _Row(
        offset=offset,
        entry=entry,
        attempt=attempt,
        late=entry.timing is Timing.LATE,
        # The attempt's own, not the stream's: what is handed in during a recovery waits in no delay stream.
        generation=int(attempt.attempt_id.split("/", 2)[1]),
    )


def rounds(rows: Iterable[_Row]) -> list[list[_Row]]:
    """Rows to be written one list after the other, each with an attempt at most once.

    As PostgreSQL would see them one by one: the first report of an attempt stays, only a takeover's Unknown
    gives way to what the worker itself says, and that comes in the second list.
    """
    first: dict[str, _Row] = {}
    second: dict[str, _Row] = {}
    for row in rows:
        attempt_id = row.attempt.attempt_id
        known = first.setdefault(attempt_id, row)
        if known is not row and is_takeover(known.attempt) and not is_takeover(row.attempt):
            second.setdefault(attempt_id, row)
    return [list(part.values()) for part in (first, second) if part]


def is_takeover(attempt: Attempt) -> bool:
    """Whether this is what a takeover settles for a worker that died, not what a worker saw."""
    return attempt.outcome is Kind.UNKNOWN and attempt.reason.startswith(WORKER_DIED)


async def _written(connection: AsyncConnection[TupleRow], rows: Sequence[_Row]) -> list[_Bad]:
    """Write these rows; returns those that PostgreSQL refuses, found by halving."""
    try:
        async with connection.transaction():
            await _write_rows(connection, rows)
    except _REFUSED as error:
        if len(rows) == 1:
            text = clean(f"{type(error).__name__}: {error}")
            return [_Bad(rows[0].offset, rows[0].entry, text)]
        middle = len(rows) // 2
        return [*await _written(connection, rows[:middle]), *await _written(connection, rows[middle:])]
    return []


async def _write_rows(connection: AsyncConnection[TupleRow], rows: Sequence[_Row]) -> None:
    async with connection.cursor() as cursor:
        await cursor.execute(statement("record/clear"))
        async with cursor.copy(statement("record/copy")) as copy:
            copy.set_types(_COLUMN_TYPES)
            for number, row in enumerate(rows, start=1):
                await copy.write_row(_columns(row))
                if number % _TURN == 0:
                    await asyncio.sleep(0)
        await cursor.execute(statement("record/write"), _RULES)


def _columns(row: _Row) -> tuple[object, ...]:
    """The values of `outcome_stage`, in its order."""
    a = row.attempt
    return (
        a.attempt_id,
        a.source,
        a.event_id,
        a.partner,
        a.created_at,
        a.number,
        a.unknowns,
        clean(a.worker),
        clean(a.trace_id),
        a.started_at,
        a.sent_at,
        a.elapsed_ms,
        a.status_code,
        a.outcome.value,
        clean(a.reason),
        a.may_have_arrived,
        a.possible_duplicate,
        clean(a.excerpt),
        a.state.value,
        None if a.cause is None else a.cause.value,
        a.due_at,
        row.late,
        row.generation,
    )


def clean(text: str) -> str:
    """Text from outside as PostgreSQL can hold it: NUL becomes the replacement character."""
    return text.replace("\x00", "\ufffd") if "\x00" in text else text


async def _quarantine(connection: AsyncConnection[TupleRow], bad: _Bad) -> None:
    await connection.execute(
        statement("record/quarantine"),
        {
            "partner": bad.offset.partner,
            "generation": bad.offset.generation,
            "entry": bad.entry.entry,
            "data": bad.entry.data,
            "error": bad.error,
        },
    )
    log.error(
        "outcome_quarantined",
        extra={
            "fields": {
                "partner": bad.offset.partner,
                "generation": bad.offset.generation,
                "entry": bad.entry.entry,
                "error": bad.error,
            }
        },
    )
