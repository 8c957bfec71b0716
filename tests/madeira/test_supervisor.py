"""The supervisor with real child processes."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import psycopg
import pytest

from madeira.supervisor import supervise

JOBS = """
[partners.AB]
endpoint = "http://127.0.0.1:9/payments"
qps = 50
allow_private = true
timeout = "2s"
"""


async def until(true: Callable[[], Awaitable[bool]]) -> None:
    """Look again and again until it is so."""
    async with asyncio.timeout(60):
        while not await true():  # noqa: ASYNC110 - processes of others tell nobody
            await asyncio.sleep(0.05)


@asynccontextmanager
async def supervised(
    *command: str, processes: int, grace_s: float
) -> AsyncIterator[tuple[asyncio.Event, asyncio.Task[int]]]:
    """A supervisor at work, as its `stop` and its end; no child outlives the test, whatever happens in it."""
    stop = asyncio.Event()
    ended = asyncio.create_task(supervise(command, processes=processes, stop=stop, grace_s=lambda: grace_s))
    try:
        yield stop, ended
    finally:
        stop.set()
        await ended


@pytest.mark.slow
async def test_a_child_that_ends_is_started_again(caplog: pytest.LogCaptureFixture) -> None:
    """Each end is said with its code and the wait before the next start, which grows; leaving says it, too."""
    async with supervised("no-such-command", processes=1, grace_s=5) as (_, ended):

        async def twice() -> bool:
            return len(caplog.records) >= 2

        await until(twice)
    assert await ended == 1
    first, second = (vars(record)["fields"] for record in caplog.records[:2])
    assert (first["code"], second["code"]) == (2, 2)
    assert 0 < first["again_in_s"] < second["again_in_s"]


@pytest.mark.slow
async def test_workers_are_kept_and_ended(
    database_url: str, redis_url: str, key_prefix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two work; one that is killed is replaced; at `stop` all leave with their records closed, and it says 0."""
    config = tmp_path / "jobs.toml"
    config.write_text(JOBS)
    for name, value in {
        "MADEIRA_CONFIG": str(config),
        "MADEIRA_DATABASE_URL": database_url,
        "MADEIRA_REDIS_URL": redis_url,
        "MADEIRA_KEY_PREFIX": key_prefix,
        "MADEIRA_VAR": str(tmp_path / "var"),
        "PYTHONPATH": str(Path(__file__).parents[2]),
    }.items():
        monkeypatch.setenv(name, value)
    async with await psycopg.AsyncConnection.connect(database_url, autocommit=True) as record:

        async def pids(which: str) -> set[int]:
            cursor = await record.execute(f"SELECT pid FROM worker WHERE ended_at {which}".encode())
            return {row[0] for row in await cursor.fetchall()}

        async with supervised("work", processes=2, grace_s=10) as (_, ended):

            async def working() -> bool:
                return len(await pids("IS NULL")) == 2

            await until(working)
            killed = min(await pids("IS NULL"))
            os.kill(killed, signal.SIGKILL)

            async def replaced() -> bool:
                return len(await pids("IS NULL")) == 3

            await until(replaced)
        assert await ended == 0
        assert await pids("IS NULL") == {killed}, "the dead one's record is for those who take over"
        assert len(await pids("IS NOT NULL")) == 2


@pytest.mark.slow
async def test_workers_leave_when_the_supervisor_is_killed(
    database_url: str, redis_url: str, key_prefix: str, tmp_path: Path
) -> None:
    """Nobody goes on with an old jobs.toml where nobody can end him: they leave in order, records closed."""
    config = tmp_path / "jobs.toml"
    config.write_text(JOBS)
    environ = os.environ | {
        "MADEIRA_CONFIG": str(config), "MADEIRA_DATABASE_URL": database_url, "MADEIRA_REDIS_URL": redis_url,
        "MADEIRA_KEY_PREFIX": key_prefix, "MADEIRA_VAR": str(tmp_path / "var"),
        "PYTHONPATH": str(Path(__file__).parents[2]),
    }  # fmt: skip
    supervisor = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "madeira", "work", "--processes", "2"), env=environ
    )
    async with await psycopg.AsyncConnection.connect(database_url, autocommit=True) as record:

        async def count(which: str) -> int:
            cursor = await record.execute(f"SELECT count(*) FROM worker WHERE ended_at {which}".encode())
            row = await cursor.fetchone()
            return int(row[0]) if row else 0

        async def working() -> bool:
            return await count("IS NULL") == 2

        async def left() -> bool:
            return await count("IS NOT NULL") == 2

        try:
            await until(working)
        finally:
            supervisor.kill()
            await supervisor.wait()
        await until(left)


@pytest.mark.slow
async def test_who_does_not_leave_in_time_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After the grace a child that hangs is ended, and the exit code says that not all left cleanly."""
    connected = asyncio.Event()
    ends = []

    async def silent(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        ends.append(writer)
        connected.set()

    server = await asyncio.start_server(silent, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    config = tmp_path / "jobs.toml"
    config.write_text(JOBS)
    monkeypatch.setenv("MADEIRA_CONFIG", str(config))
    monkeypatch.setenv("MADEIRA_DATABASE_URL", f"postgresql://nobody@127.0.0.1:{port}/none")
    monkeypatch.setenv("MADEIRA_REDIS_URL", f"redis://127.0.0.1:{port}/0")
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    async with server, supervised("schedule", processes=1, grace_s=0.2) as (stop, ended):
        async with asyncio.timeout(60):
            await connected.wait()  # from now on it waits for a database that never says a word
        stop.set()
        assert await ended == 1
        for end in ends:
            end.transport.abort()


@pytest.mark.slow
async def test_stop_before_anything_began(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A child that is asked to leave before it listens for that has nothing in hand, so it leaves cleanly."""
    monkeypatch.setenv("MADEIRA_VAR", str(tmp_path))
    stop = asyncio.Event()
    stop.set()
    assert await supervise(["work"], processes=2, stop=stop, grace_s=lambda: 5.0) == 0
