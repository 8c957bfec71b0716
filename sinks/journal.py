"""The journal: outcomes as rows of `delivery_log`, and what they change in `delivery`.

Everything that was read goes in by one COPY and one statement; what PostgreSQL refuses is found by halving and
put aside with its bytes, so one hostile answer stops nobody.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import msgspec
import psycopg
from psycopg import AsyncConnection
from psycopg.rows import TupleRow

from sinks.statement import statement
from streams.delivery import MOVES, WORKER_DIED, Attempt, Cause, Kind, Move
from streams.outcomes import OutcomeEntry, Timing

log = logging.getLogger(__name__)

_TURN = 50
"""Outcomes handled before sends get their turn: a worker that looks away for milliseconds misses its slots."""

_attempts = msgspec.msgpack.Decoder(Attempt)

_MAY_SUCCEED = [s.value for s, moves in MOVES.items() if {Move.SUCCEED, Move.LATE_SUCCESS} & moves.keys()]
_MAY_FAIL = [s.value for s, moves in MOVES.items() if {Move.RETRY, Move.GIVE_UP} <= moves.keys()]
_MAY_DOUBT = [s.value for s, moves in MOVES.items() if Move.DOUBT in moves]
_RULES = {"takeover": WORKER_DIED, "may_succeed": _MAY_SUCCEED, "may_fail": _MAY_FAIL}

_COLUMN_TYPES = (
    *("text", "text", "text", "text", "timestamptz", "int8", "int8", "text", "text", "timestamptz"),
    *("timestamptz", "int8", "int8", "text", "text", "bool", "bool", "text", "text", "text"),
    *("timestamptz", "bool", "int8", "bool"),
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
    twice: bool
    generation: int


class _Bad(msgspec.Struct, frozen=True):
    """One that can't be recorded."""

    offset: Offset
    entry: OutcomeEntry
    error: str
    trace_id: str | None = None
    """None: its bytes do not say."""


async def write_down(
    connection: AsyncConnection[TupleRow], read: Sequence[tuple[Offset, tuple[OutcomeEntry, ...]]]
) -> None:
    """Log and apply what was read; what can't be is put aside with its bytes."""
    rows: list[_Row] = []
    bad: list[_Bad] = []
    for offset, entries in read:
        for number, entry in enumerate(entries, start=1):
            if number % _TURN == 0:
                await asyncio.sleep(0)
            if entry.timing is Timing.CANCELLED:
                continue
            try:
                rows.append(_parsed(offset, entry))
            except (msgspec.MsgspecError, ValueError, IndexError) as error:
                bad.append(_Bad(offset, entry, f"{type(error).__name__}: {error}"))
    await connection.execute(statement("record/stage"))
    await connection.execute(statement("pool/by_key"))
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
        late=entry.timing in {Timing.LATE, Timing.TWICE},
        twice=attempt.possible_duplicate or entry.timing is Timing.TWICE,
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
            return [_Bad(rows[0].offset, rows[0].entry, text, rows[0].attempt.trace_id)]
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
        if any(row.twice for row in rows):
            await cursor.execute(statement("record/flag"))
        if any(row.attempt.may_have_arrived for row in rows):
            await cursor.execute(
                statement("record/doubt"), {"may_doubt": _MAY_DOUBT, "unknown": Cause.UNKNOWN}
            )


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
        row.twice,
        clean(a.excerpt),
        a.state.value,
        None if a.cause is None else a.cause.value,
        a.due_at,
        row.late,
        row.generation,
        a.counted,
    )


def clean(text: str) -> str:
    """Text from outside as PostgreSQL can hold it: NUL becomes the replacement character."""
    return text.replace("\x00", "\ufffd") if "\x00" in text else text


async def _quarantine(connection: AsyncConnection[TupleRow], bad: _Bad) -> None:
    source, _, event_id = clean(bad.entry.delivery).partition(":")
    await connection.execute(
        statement("record/quarantine"),
        {
            "source": source,
            "event_id": event_id,
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
                "delivery": bad.entry.delivery,
                "trace_id": bad.trace_id,
                "error": bad.error,
            }
        },
    )
