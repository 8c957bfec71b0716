"""Connections to the record: a fixed pool per process, and one name for "it does not answer"."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta

import psycopg
from psycopg import AsyncConnection
from psycopg.rows import TupleRow
from psycopg_pool import AsyncConnectionPool, PoolClosed, PoolTimeout, TooManyRequests

from streams.errors import StoreUnavailable

_SESSION = {
    # Nobody waits for ever behind a frozen process, and a frozen process does not hold what it locked.
    "lock_timeout": timedelta(seconds=10),
    "idle_in_transaction_session_timeout": timedelta(seconds=30),
    "statement_timeout": timedelta(seconds=120),
    "tcp_user_timeout": timedelta(seconds=20),
}


async def open_pool(
    url: str,
    *,
    name: str,
    connections: int = 8,
    wait: timedelta = timedelta(seconds=5),
    reconnect: timedelta = timedelta(seconds=30),
) -> AsyncConnectionPool:
    """A pool whose sessions are in UTC, named `name` in `pg_stat_activity`, with bounded waits.

    It opens without a server too and goes on trying; a caller that gets no connection within `wait` sees
    `StoreUnavailable` (through `borrow`). Close it with `close()`.
    """
    options = [f"-c {key}={value // timedelta(milliseconds=1)}" for key, value in _SESSION.items()]
    pool = AsyncConnectionPool(
        url,
        min_size=1,
        max_size=connections,
        open=False,
        timeout=wait.total_seconds(),
        reconnect_timeout=reconnect.total_seconds(),
        name=name,
        kwargs={
            "application_name": name,
            "connect_timeout": 5,
            "keepalives_idle": 10,
            "keepalives_interval": 5,
            "keepalives_count": 3,
            "options": " ".join([*options, "-c timezone=UTC"]),
        },
    )
    await pool.open()
    return pool


@asynccontextmanager
async def borrow(pool: AsyncConnectionPool) -> AsyncIterator[AsyncConnection[TupleRow]]:
    """One connection, committed at the end, rolled back at an error.

    Raises `StoreUnavailable` where PostgreSQL does not answer or takes no writes, a lock is not given in time or the
    session was ended; nothing of the block was committed then, unless the answer to the commit itself was lost.
    """
    try:
        async with pool.connection() as connection:
            yield connection
    except (
        psycopg.OperationalError,
        # InternalErrors to psycopg: the session is gone; the server is a standby or read-only; a trigger said no.
        psycopg.errors.IdleInTransactionSessionTimeout,
        psycopg.errors.ReadOnlySqlTransaction,
        psycopg.errors.RaiseException,
        psycopg.InterfaceError,
        PoolTimeout,
        PoolClosed,
        TooManyRequests,
    ) as error:
        raise StoreUnavailable(f"PostgreSQL: {type(error).__name__}: {error}") from error
