"""A look at the whole record as of one moment, for what must add up."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime

import psycopg
from psycopg import IsolationLevel
from psycopg.rows import TupleRow

from sinks.statement import statement
from streams.errors import StoreUnavailable

Parameters = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One REPEATABLE READ, READ ONLY transaction: every statement sees the record as of `as_of` (UTC)."""

    connection: psycopg.Connection[TupleRow] = field(repr=False)
    as_of: datetime

    def rows(self, name: str, parameters: Parameters) -> list[TupleRow]:
        """All rows of the statement `name`; for small results."""
        return self.connection.execute(statement(name), parameters).fetchall()

    def copy(self, name: str, parameters: Parameters) -> Iterator[bytes | bytearray | memoryview]:
        """The `COPY … TO STDOUT` in `name`: one item a row, as the server wrote it, never more in memory."""
        with self.connection.cursor() as cursor, cursor.copy(statement(name), parameters) as copy:
            yield from copy


@contextmanager
def snapshot(database_url: str, *, name: str) -> Iterator[Snapshot]:
    """A snapshot, named `madeira-<name>` in the server's list. Raises `StoreUnavailable` when it is lost."""
    try:
        with psycopg.connect(
            database_url, application_name=f"madeira-{name}", connect_timeout=10
        ) as connection:
            connection.isolation_level = IsolationLevel.REPEATABLE_READ
            connection.read_only = True
            # The transaction's first statement is what fixes the moment.
            row = connection.execute(statement("reconcile/as_of")).fetchone()
            assert row is not None
            yield Snapshot(connection, row[0])
    except psycopg.OperationalError as error:
        raise StoreUnavailable(f"PostgreSQL does not answer: {error}") from error
