"""The accounting database as a job reads it: one read-only snapshot, its rows and its own totals of them."""

from __future__ import annotations

import json
import re
from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date

import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict
from psycopg.postgres import types

from pipelines.job import Job
from pipelines.manifest import Group, Sum
from sinks.statement import statement
from streams.errors import BatchRefused, ConfigurationError, StoreUnavailable
from streams.money import EXPONENTS, MoneyError, exponent, total_to_minor

BUSINESS_DATE = "business_date"
"""May be part of `event_id` even where the query does not select it."""

_EXACT_TYPES = frozenset({"numeric", "int2", "int4", "int8"})
_CONNECT_TIMEOUT_S = 10

CHUNK_BYTES = 128 * 1024
CHUNK_ROWS = 1_000

# What the placeholder must not be looked for in, and casts; then the placeholder itself.
_TOKENS = re.compile(
    r"""
    (?P<skip>
        \b[eE]'(?:[^'\\]|\\.|'')*'                           # E'it\'s'
      | '(?:[^']|'')*'
      | "(?:[^"]|"")*"
      | (?P<tag>\$(?:[A-Za-z_][A-Za-z_0-9]*)?\$).*?(?P=tag)  # $body$ … $body$
      | --[^\n]*
      | /\*
      | ::
    )
  | (?P<date>:business_date\b)
    """,
    re.VERBOSE | re.DOTALL,
)
_COMMENT_EDGE = re.compile(r"/\*|\*/")


def bind_date(query: str, business_date: date) -> str:
    """The query with each `:business_date` as a DATE literal; quoted text, comments and casts stay as they are.

    A last semicolon is dropped. Assumes `standard_conforming_strings`, the default since PostgreSQL 9.1.
    """
    literal = f"DATE '{business_date.isoformat()}'"
    parts: list[str] = []
    at = 0
    while found := _TOKENS.search(query, at):
        parts.append(query[at : found.start()])
        if found["date"]:
            at = found.end()
            parts.append(literal)
        else:
            at = _comment_end(query, found.start()) if found["skip"] == "/*" else found.end()
            parts.append(query[found.start() : at])
    parts.append(query[at:])
    return _without_semicolon(parts)


def _without_semicolon(parts: list[str]) -> str:
    """Joined, without the semicolon behind the last code; comments may follow it."""
    for index in range(len(parts) - 1, -1, -1):
        part = parts[index]
        if part.startswith(("--", "/*")) or not part.strip():
            continue
        code = part.rstrip()
        if code.endswith(";"):
            parts[index] = code[:-1] + part[len(code) :]
        break
    return "".join(parts)


def _comment_end(query: str, start: int) -> int:
    """Where the comment that opens at `start` ends; PostgreSQL's comments nest."""
    depth = 0
    for edge in _COMMENT_EDGE.finditer(query, start):
        depth += 1 if edge.group() == "/*" else -1
        if depth == 0:
            return edge.end()
    return len(query)


class UntranslatableRow(Exception):
    """The source cannot write a row's text as UTF-8 and ended the copy there."""


def in_chunks(rows: Iterable[bytes]) -> Iterator[list[bytes]]:
    """Rows in short lists, bounded in number and bytes: memory does not grow with the batch.

    What came before an `UntranslatableRow` is handed over before that is raised.
    """
    chunk: list[bytes] = []
    size = 0
    try:
        for row in rows:
            chunk.append(row)
            size += len(row)
            if size >= CHUNK_BYTES or len(chunk) >= CHUNK_ROWS:
                yield chunk
                chunk, size = [], 0
    except UntranslatableRow:
        if chunk:
            yield chunk
        raise
    if chunk:
        yield chunk


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One moment of the source: everything that it answers is about the same rows."""

    connection: psycopg.Connection
    job: Job
    columns: tuple[str, ...]
    _query: sql.Composable
    _business_date: date

    def rows(self) -> Generator[bytes, None, None]:
        """Every row as one line of PostgreSQL's COPY text, in the order of the query: id, partner, amount,
        currency, order key, and the row as a JSON object, which is the event's body.

        Lines are UTF-8, unless the source is SQL_ASCII: that knows no encoding and hands over the bytes that it has.
        Raises `UntranslatableRow` behind the last good row, `BatchRefused` for a query that fails while it runs.
        """
        if self.connection.info.parameter_status("server_encoding") != "SQL_ASCII":
            yield from self._copied("batch/source_rows")
            return
        self.connection.execute("SET LOCAL client_encoding = 'SQL_ASCII'")
        yield from self._copied("batch/source_rows")
        self.connection.execute("SET LOCAL client_encoding = 'UTF8'")

    def events(self) -> Generator[bytes, None, None]:
        """Every row as `pipelines.load` takes it: partner, id, minor units (null for an amount that is not exact or
        not above zero), currency, order key, body and its SHA-256. Needs PostgreSQL 11 or newer there.

        Raises like `rows`.
        """
        return self._copied("batch/source_events")

    def _copied(self, name: str) -> Generator[bytes, None, None]:
        try:
            with self.connection.cursor() as cursor, cursor.copy(self._composed(name)) as copy:
                for row in copy:
                    yield bytes(row)
        except (psycopg.errors.UntranslatableCharacter, psycopg.errors.CharacterNotInRepertoire) as error:
            raise UntranslatableRow(_first_line(error)) from None
        except psycopg.Error as error:
            raise _failed(self.job, error) from None

    def totals(self) -> dict[Group, Sum]:
        """What the source itself counts, by an aggregate over the query. May run in a thread of its own.

        Raises `BatchRefused`.
        """
        try:
            counted = self.connection.execute(self._composed("batch/source_totals")).fetchall()
            return {
                Group(partner, currency or ""): Sum(
                    count, total_to_minor(amount, currency) if currency else 0
                )
                for partner, currency, count, amount in counted
            }
        except psycopg.Error as error:
            raise _failed(self.job, error) from None
        except MoneyError as error:
            raise BatchRefused(f"{self.job.query_file}: the source's total is no amount: {error}") from None

    @contextmanager
    def again(self) -> Iterator[None]:
        """What fails inside leaves the snapshot as it was, to be read again."""
        with self.connection.transaction():
            yield

    def _composed(self, name: str) -> sql.Composed:
        job = self.job
        return sql.SQL(statement(name)).format(
            query=self._query,
            event_id=sql.SQL(" || ':' || ").join(self._id_part(column) for column in job.event_id),
            partner=_text(job.partner, is_column=job.partner_is_column),
            amount=sql.SQL("NULL::numeric") if job.amount is None else sql.Identifier(job.amount) + _NUMERIC,
            currency=sql.SQL("NULL::text")
            if job.currency is None
            else _text(job.currency, is_column=job.currency_is_column),
            factor=self._factor(),
            order_key=sql.SQL("NULL::text")
            if job.order_key is None
            else _text(job.order_key, is_column=True),
        )

    def _factor(self) -> sql.Composable:
        """Minor units in one unit of the row's currency; null for a currency that is none."""
        job = self.job
        if job.currency is None:
            return sql.SQL("NULL::numeric")
        if not job.currency_is_column:
            return sql.Literal(10 ** exponent(job.currency)) + _NUMERIC
        factors = json.dumps({code: 10**decimals for code, decimals in EXPONENTS.items()})
        return sql.SQL("({factors}::jsonb ->> {currency})::numeric").format(
            factors=sql.Literal(factors), currency=_text(job.currency, is_column=True)
        )

    def _id_part(self, column: str) -> sql.Composable:
        if column == BUSINESS_DATE and column not in self.columns:
            return _text(self._business_date.isoformat(), is_column=False)
        return _text(column, is_column=True)


_NUMERIC = sql.SQL("::numeric")


def _text(name: str, *, is_column: bool) -> sql.Composable:
    return (sql.Identifier(name) if is_column else sql.Literal(name)) + sql.SQL("::text")


@contextmanager
def snapshot(job: Job, business_date: date) -> Iterator[Snapshot]:
    """Open the job's source at one moment, read only, and look at the query's columns.

    Raises `ConfigurationError` for an unset or unreadable DSN, `StoreUnavailable` when the source does not
    answer, `BatchRefused` for a query that is wrong or lacks a column. No message holds the DSN.
    """
    with _connection(job) as connection:
        bound = sql.SQL(bind_date(job.query, business_date))
        probe = sql.SQL(statement("batch/source_columns")).format(query=bound)
        try:
            # In binary, since the extended protocol refuses a second statement behind a semicolon.
            cursor = connection.execute(probe, binary=True)
        except psycopg.Error as error:
            raise _failed(job, error) from None
        kinds = {column.name: column.type_code for column in cursor.description or ()}
        _require_columns(job, kinds)
        yield Snapshot(connection, job, tuple(kinds), bound, business_date)


@contextmanager
def _connection(job: Job) -> Iterator[psycopg.Connection]:
    if not job.dsn:
        raise ConfigurationError(
            (f"jobs.{job.id}: set {job.dsn_env or 'dsn_env'} to the source's connection string",)
        )
    try:
        conninfo_to_dict(job.dsn)
    except psycopg.Error:
        # libpq's message would quote the text, password and all.
        raise ConfigurationError(
            (f"jobs.{job.id}: {job.dsn_env} is no PostgreSQL connection string",)
        ) from None
    try:
        connection = psycopg.connect(
            job.dsn,
            autocommit=True,
            connect_timeout=_CONNECT_TIMEOUT_S,
            application_name=f"madeira-{job.id}",
            client_encoding="UTF8",
        )
    except psycopg.Error as error:
        raise StoreUnavailable(f"source of job {job.id}: {_first_line(error)}") from None
    try:
        connection.execute(statement("batch/source_session"))
        connection.autocommit = False
        connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        connection.read_only = True
        yield connection
    finally:
        connection.close()


def _require_columns(job: Job, kinds: dict[str, int]) -> None:
    wanted = {column: "event_id" for column in job.event_id if column != BUSINESS_DATE}
    if job.partner_is_column:
        wanted.setdefault(job.partner, "partner")
    if job.amount is not None:
        wanted.setdefault(job.amount, "amount")
    if job.currency is not None and job.currency_is_column:
        wanted.setdefault(job.currency, "currency")
    if job.order_key is not None:
        wanted.setdefault(job.order_key, "order_key")
    there = ", ".join(kinds) or "none"
    missing = [f"{key} names the column {name}" for name, key in wanted.items() if name not in kinds]
    if missing:
        raise BatchRefused(f"{job.query_file}: {'; '.join(missing)}, but the query's columns are: {there}")
    if job.currency is not None and not job.currency_is_column and job.currency not in EXPONENTS:
        raise ConfigurationError((f"jobs.{job.id}.currency must be an ISO 4217 code, is {job.currency}",))
    if job.amount is not None:
        found = types.get(kinds[job.amount])
        kind = found.name if found else "of an unknown type"
        if kind not in _EXACT_TYPES:
            raise BatchRefused(
                f"{job.query_file}: amount {job.amount} is {kind}, which may not be exact: "
                f"select it as numeric ({job.amount}::numeric)"
            )


def _failed(job: Job, error: psycopg.Error) -> BatchRefused | StoreUnavailable:
    if error.sqlstate is None or isinstance(error, psycopg.OperationalError):
        return StoreUnavailable(f"source of job {job.id}: {_first_line(error)}")
    return BatchRefused(f"{job.query_file}: the source refuses the query: {_first_line(error)}")


def _first_line(error: psycopg.Error) -> str:
    """The server's own words; their detail may quote data and stays out."""
    text = error.diag.message_primary or str(error)
    return text.strip().partition("\n")[0] or type(error).__name__
