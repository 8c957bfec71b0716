"""The straight way of a batch's rows: from the source's COPY into `event` and `delivery`, touched once.

It takes only rows that are in order. At the first that is not it stops, and `pipelines/stage.py` loads the same
snapshot the careful way, which knows the reasons.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import date, datetime
from itertools import chain

import psycopg

from pipelines.job import Job
from pipelines.manifest import Group, Sum
from pipelines.source import CHUNK_ROWS, in_chunks
from sinks.statement import statement

_ROWS_PER_COPY = 20_000
_PART = "[A-Za-z0-9._-]+"
_TRACE_BYTES = 16


class NotStraight(Exception):
    """A row, or the whole, needs the careful way."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """What was written. `ids_sha256` is hex over all ids in order, each followed by a newline."""

    rows: int
    sums: dict[Group, Sum]
    ids_sha256: str


def id_pattern(parts: int) -> str:
    """Regular expression of a whole id for Python and PostgreSQL; its length is looked at beside it.

    One column may hold colons; with several each must be without, so that the joined id says which was which.
    """
    if parts == 1:
        return "[A-Za-z0-9._:-]+"
    return _PART + f":{_PART}" * (parts - 1)


class _Tally:
    """What one partner and currency have so far."""

    __slots__ = ("count", "minor")

    def __init__(self) -> None:
        self.count = 0
        self.minor = 0


class Loading:
    """One run's rows on their way into the open transaction of `connection`."""

    __slots__ = ("_connection", "_event", "_hash", "_ids", "_job", "_marks", "_numbers", "_rows", "_tallies")

    def __init__(
        self,
        connection: psycopg.Connection,
        job: Job,
        *,
        batch_id: int,
        business_date: date,
        created_at: datetime,
    ) -> None:
        self._connection = connection
        self._job = job
        moment = created_at.isoformat()
        fields = (job.id, _escaped(job.event_type), moment, str(batch_id), business_date.isoformat())
        self._event = b"%d\t%b\t" + "\t".join(fields).encode().replace(b"%", b"%%") + b"\t%b"
        self._marks = f"%d\t%b\t{batch_id}\t%d\t{moment}\n".encode()
        self._ids = re.compile(rf"(?:(?=[^\n]{{1,128}}\n){id_pattern(len(job.event_id))}\n)*".encode())
        self._numbers = dict.fromkeys((name.encode() for name in job.partners), 0)
        self._tallies: defaultdict[tuple[bytes, bytes], _Tally] = defaultdict(_Tally)
        self._hash = hashlib.sha256()
        self._rows = 0

    def load(self, rows: Iterable[bytes]) -> Loaded:
        """Write every line of `Snapshot.events`, some thousand events and then their deliveries at a time.

        Raises `NotStraight`: the transaction is then to be rolled back. What `rows` raises goes through.
        """
        chunks = in_chunks(rows)
        try:
            while deliveries := self._copy_events(chunks):
                self._copy_deliveries(deliveries)
        except (psycopg.IntegrityError, psycopg.DataError) as error:
            # A known or doubled id, or text that the record cannot hold.
            raise NotStraight(type(error).__name__) from error
        sums = {self._group(key): Sum(tally.count, tally.minor) for key, tally in self._tallies.items()}
        return Loaded(self._rows, sums, self._hash.hexdigest())

    def _copy_events(self, chunks: Iterator[list[bytes]]) -> list[bytes]:
        """Returns the lines of their deliveries, none when there are no more rows."""
        first = next(chunks, None)
        if first is None:
            return []
        found = self._connection.execute(
            statement("batch/next_event_ids"), {"count": _ROWS_PER_COPY}
        ).fetchone()
        assert found is not None
        ids = iter(found[0])
        deliveries: list[bytes] = []
        with self._connection.cursor() as cursor:
            with cursor.copy(statement("batch/copy_events")) as copy:
                for chunk in chain((first,), chunks):
                    copy.write(self._lines(chunk, ids, deliveries))
                    if len(deliveries) > _ROWS_PER_COPY - CHUNK_ROWS:
                        break
            self._require(cursor.rowcount, len(deliveries))
        return deliveries

    def _copy_deliveries(self, lines: list[bytes]) -> None:
        with self._connection.cursor() as cursor:
            with cursor.copy(statement("batch/copy_deliveries")) as copy:
                copy.write(b"".join(lines))
            self._require(cursor.rowcount, len(lines))

    def _lines(self, chunk: list[bytes], ids: Iterator[int], deliveries: list[bytes]) -> bytes:
        """The chunk as `event` takes it; appends what `delivery` takes."""
        traces = os.urandom(_TRACE_BYTES * len(chunk)).hex().encode()
        numbers, tallies = self._numbers, self._tallies
        event, marks = self._event, self._marks
        has_amount = self._job.amount is not None
        event_ids: list[bytes] = []
        events: list[bytes] = []
        at = 0
        for row in chunk:
            partner, event_id, minor, currency, _ = row.split(b"\t", 4)
            if partner not in numbers:
                raise NotStraight("a partner is not configured")
            number = numbers[partner] = numbers[partner] + 1
            tally = tallies[partner, currency]
            tally.count += 1
            if has_amount:
                if minor == rb"\N":
                    raise NotStraight("an amount is not exact or not above zero")
                tally.minor += int(minor)
            event_ids.append(event_id)
            event_number = next(ids)
            events.append(event % (event_number, traces[at : at + 2 * _TRACE_BYTES], row[len(partner) + 1 :]))
            deliveries.append(marks % (event_number, partner, number))
            at += 2 * _TRACE_BYTES
        event_ids.append(b"")
        joined = b"\n".join(event_ids)
        if self._ids.fullmatch(joined) is None:
            raise NotStraight("an id is null or malformed")
        self._hash.update(joined)
        self._rows += len(chunk)
        return b"".join(events)

    def _group(self, key: tuple[bytes, bytes]) -> Group:
        partner, currency = key
        return Group(partner.decode(), currency.decode() if self._job.amount is not None else "")

    @staticmethod
    def _require(written: int, sent: int) -> None:
        if written != sent:
            raise NotStraight(f"{sent} rows were sent and {written} written")


def _escaped(text: str) -> str:
    """As COPY's text format wants a value."""
    return text.replace("\\", r"\\").replace("\t", r"\t").replace("\n", r"\n").replace("\r", r"\r")
