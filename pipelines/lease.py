"""Who runs a batch: a lease in its row, renewed while the run lives, and a lock that dies with its session."""

from __future__ import annotations

import logging
import secrets
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date, datetime, timedelta

import psycopg
from psycopg.rows import class_row

from sinks.statement import statement

LEASE = timedelta(seconds=60)
RENEWED_EVERY = timedelta(seconds=10)

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class BatchRow:
    """A batch as its row says. `leased` compares the lease with PostgreSQL's clock."""

    id: int
    revision: int
    state: str
    lease_owner: str | None
    leased: bool
    expected_count: int | None
    loaded_count: int | None
    already_known: int | None
    ids_sha256: str | None
    snapshot_at: datetime | None
    failure: object


@dataclass(frozen=True, slots=True)
class Lease:
    """The right to run one batch. `owner` is different for each run, so who was taken over cannot commit."""

    batch: BatchRow
    owner: str


def claim(
    connection: psycopg.Connection, *, job: str, business_date: date, revision: int, owner: str
) -> Lease | BatchRow:
    """Take the batch if nobody runs it; else its row as it is. `connection` is in autocommit and must stay open.

    A live lease is respected unless its owner's session is gone: then the owner was killed. Through a pooler
    that shares sessions the lock says nothing, and the lease alone decides.
    """
    key = {"job": job, "business_date": business_date, "revision": revision}
    connection.execute(statement("batch/open"), key)
    batch = _look(connection, key)
    if batch.state not in {"running", "failed"}:
        return batch
    alone = _yes(connection, "batch/try_session_lock", batch.id)
    mine = f"{owner}#{secrets.token_hex(4)}"
    claimed = connection.execute(
        statement("batch/claim"),
        {
            "batch_id": batch.id,
            "owner": mine,
            "last_owner": batch.lease_owner,
            "lease": LEASE,
            "alone": alone,
        },
    ).fetchone()
    if claimed is None:
        if alone:
            _yes(connection, "batch/session_unlock", batch.id)
        return _look(connection, key)
    return Lease(batch, mine)


@contextmanager
def renewed(connection: psycopg.Connection, lease: Lease) -> Iterator[None]:
    """Renew the lease from a thread of its own as long as the block runs; `connection` belongs to it meanwhile.

    A renewal that fails is only logged: the release at the end says whether the batch is still ours.
    """
    ended = threading.Event()
    parameters = {"batch_id": lease.batch.id, "owner": lease.owner, "lease": LEASE}

    def renew() -> None:
        while not ended.wait(RENEWED_EVERY.total_seconds()):
            try:
                connection.execute(statement("batch/renew"), parameters)
            except psycopg.Error as error:
                _log.warning(
                    "batch_lease_not_renewed",
                    extra={"fields": {"batch": lease.batch.id, "error": str(error)}},
                )
                return

    thread = threading.Thread(target=renew, name=f"batch-lease-{lease.batch.id}", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _look(connection: psycopg.Connection, key: dict[str, object]) -> BatchRow:
    with connection.cursor(row_factory=class_row(BatchRow)) as cursor:
        found = cursor.execute(statement("batch/look"), key).fetchone()
    assert found is not None
    return found


def _yes(connection: psycopg.Connection, name: str, batch_id: int) -> bool:
    row = connection.execute(statement(name), {"batch_id": batch_id}).fetchone()
    return row is not None and bool(row[0])
