"""Which reconciliation reports were published: one row for each revision of a business date."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime

import psycopg
from psycopg.types.json import Jsonb

from sinks.statement import statement
from streams.errors import StoreUnavailable


@dataclass(frozen=True, slots=True)
class ReportRun:
    """One published report; `totals` is written as JSON, amounts in it are text."""

    business_date: date
    revision: int
    as_of: datetime
    verdict: str
    directory: str
    totals: Sequence[Mapping[str, object]]


def latest_revision(database_url: str, business_date: date) -> int:
    """The highest revision published for the date, 0 for none. Raises `StoreUnavailable`."""
    try:
        with psycopg.connect(
            database_url, application_name="madeira-reconcile", connect_timeout=10
        ) as connection:
            row = connection.execute(
                statement("reconcile/latest_revision"), {"business_date": business_date}
            ).fetchone()
    except psycopg.OperationalError as error:
        raise StoreUnavailable(f"PostgreSQL does not answer: {error}") from error
    assert row is not None
    return int(row[0])


def record_run(database_url: str, run: ReportRun, rename: Callable[[], bool]) -> bool:
    """Take the revision, `rename` the finished folder, commit. False, changing nothing, when it is taken.

    Committed after the rename: a crash between them leaves a whole report without a row, never the reverse.
    """
    parameters = {
        "business_date": run.business_date,
        "revision": run.revision,
        "as_of": run.as_of,
        "verdict": run.verdict,
        "directory": run.directory,
        "totals": Jsonb(list(run.totals)),
    }
    try:
        with psycopg.connect(
            database_url, application_name="madeira-reconcile", connect_timeout=10
        ) as connection:
            taken = connection.execute(statement("reconcile/publish"), parameters).fetchone() is None
            if taken or not rename():
                connection.rollback()
                return False
    except psycopg.OperationalError as error:
        raise StoreUnavailable(f"PostgreSQL does not answer: {error}") from error
    return True
