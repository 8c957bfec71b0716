"""The careful way of a batch's rows: staged in the record until all of them are checked, with reasons for the bad."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import date, datetime

import psycopg

from pipelines.job import Job
from pipelines.load import id_pattern
from pipelines.manifest import Group, Sum
from pipelines.source import UntranslatableRow, in_chunks
from sinks.statement import statement
from streams.money import EXPONENTS

SHOWN_OFFENDERS = 20


@dataclass(frozen=True, slots=True)
class Offender:
    """A row that cannot become an event. `row` counts from 1 in the query's order; `event_id` as far as known."""

    row: int
    event_id: str
    reason: str


@dataclass(frozen=True, slots=True)
class Offenders:
    """How many rows cannot become events, and the first of them."""

    count: int
    first: tuple[Offender, ...]


@dataclass(frozen=True, slots=True)
class Received:
    """What came over. `suspicious`: some row's id or text already looks wrong, so look for offenders at once.

    `ids_sha256` is hex over the ids in order, each followed by a newline; of no meaning when suspicious.
    `untranslatable` says why the source ended the copy behind the last row, None when it did not.
    """

    rows: int
    suspicious: bool
    ids_sha256: str
    untranslatable: str | None


class Stage:
    """The rows of one run, inside the loading transaction of `connection`."""

    __slots__ = ("_connection", "_job", "_money")

    def __init__(self, connection: psycopg.Connection, job: Job) -> None:
        self._connection = connection
        self._job = job
        codes = sorted(EXPONENTS)
        self._money = {
            "currencies": codes,
            "decimals": [EXPONENTS[code] for code in codes],
            "factors": [10 ** EXPONENTS[code] for code in codes],
        }

    def set_up(self) -> None:
        """Make the empty stage; it is gone when the transaction ends."""
        self._connection.execute(statement("batch/stage"))

    def receive(self, rows: Iterable[bytes]) -> Received:
        """Copy every row into the stage as it came, a chunk at a time: memory does not grow with the batch."""
        relay = _Relay(id_pattern(len(self._job.event_id)))
        untranslatable: str | None = None
        with (
            self._connection.cursor() as cursor,
            cursor.copy(statement("batch/stage_rows")) as copy,
        ):
            try:
                for chunk in in_chunks(rows):
                    copy.write(relay.passed(chunk))
            except UntranslatableRow as error:
                untranslatable = str(error)
        return relay.received(untranslatable)

    def offenders(self, received: Received) -> Offenders:
        """Look at everything: each row that cannot become an event, with its first reason."""
        parameters = self._checks() | {
            "source": self._job.id,
            "id_pattern": f"^{id_pattern(len(self._job.event_id))}$",
            "limit": SHOWN_OFFENDERS,
        }
        self._connection.execute("ANALYZE batch_stage")
        found = self._connection.execute(statement("batch/find_offenders"), parameters).fetchall()
        first = [Offender(row, event_id or "", reason) for row, event_id, reason, _ in found]
        count = int(found[0][3]) if found else 0
        if received.untranslatable is not None:
            # The source stopped there: what comes behind is not known.
            count += 1
            if len(first) < SHOWN_OFFENDERS:
                first.append(Offender(received.rows + 1, "", received.untranslatable))
        return Offenders(count, tuple(first))

    def known(self) -> dict[Group, Sum]:
        """Take out what an earlier batch loaded with the same body, and say what it was."""
        return self._sums("batch/set_known_aside", {"source": self._job.id})

    def load(self, *, batch_id: int, business_date: date, created_at: datetime) -> dict[Group, Sum]:
        """Write events and deliveries of everything staged; the sums are of the rows written.

        Raises `psycopg.errors.UniqueViolation` when an id is there twice or was there before.
        """
        return self._sums(
            "batch/load",
            {
                "source": self._job.id,
                "event_type": self._job.event_type,
                "batch_id": batch_id,
                "business_date": business_date,
                "created_at": created_at,
            },
        )

    def totals(self) -> dict[Group, Sum]:
        """What is staged, for a plan."""
        return self._sums("batch/staged_totals", {})

    def _checks(self) -> dict[str, object]:
        return {
            "partners": sorted(self._job.partners),
            "has_amount": self._job.amount is not None,
        } | self._money

    def _sums(self, name: str, parameters: Mapping[str, object]) -> dict[Group, Sum]:
        found = self._connection.execute(statement(name), {**parameters, **self._money}).fetchall()
        return {Group(partner, currency): Sum(count, int(minor)) for partner, currency, count, minor in found}


class _Relay:
    """Looks at each chunk on its way: how many rows, their ids, and whether all of it is UTF-8."""

    __slots__ = ("_hash", "_line", "_rows", "_suspicious")

    def __init__(self, pattern: str) -> None:
        self._line = re.compile(rf"^(?=[^\t]{{1,128}}\t)({pattern})\t[^\n]*\n".encode(), re.MULTILINE)
        self._hash = hashlib.sha256()
        self._rows = 0
        self._suspicious = False

    def passed(self, rows: list[bytes]) -> bytes:
        """The rows as they may be written to the stage."""
        self._rows += len(rows)
        chunk = b"".join(rows)
        try:
            chunk.decode()
        except UnicodeDecodeError:
            self._suspicious = True
            return b"".join(_readable(row) for row in rows)
        ids = self._line.findall(chunk)
        if len(ids) == len(rows):
            ids.append(b"")
            self._hash.update(b"\n".join(ids))
        else:
            self._suspicious = True
        return chunk

    def received(self, untranslatable: str | None) -> Received:
        """Everything that passed."""
        return Received(
            rows=self._rows,
            suspicious=self._suspicious or untranslatable is not None,
            ids_sha256=self._hash.hexdigest(),
            untranslatable=untranslatable,
        )


def _readable(row: bytes) -> bytes:
    """A row that is not UTF-8 keeps its id as far as it can be shown, and has no body: that marks it."""
    try:
        row.decode()
    except UnicodeDecodeError:
        fields = row.decode(errors="replace").encode().rstrip(b"\n").split(b"\t")
        return b"\t".join([*fields[:-1], rb"\N"]) + b"\n"
    return row
