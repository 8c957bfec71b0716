"""A small night in this process: orders in a source, banks that keep a ledger, workers that can be asked to leave.

Settings, stores and steps are the real ones; what is chosen here is only how many orders there are and how the
banks behave. `Cable` lies between Madeira and a server, so that a test can pull it.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import psycopg
from psycopg.rows import TupleRow

from madeira.bank_ledger import Bank, Entry
from madeira.banks import Banks
from madeira.settings import Settings, load
from madeira.worker import Stores, Worker, open_stores
from pipelines.batch import BatchResult, run_batch
from sinks.webhook import Webhook
from tests.partner import banks

JOB = "payment-orders"
DAY = date(2026, 3, 2)
QUERY = "SELECT order_id, bank_to, account_to, amount, :business_date AS business_date FROM payment_orders ORDER BY 1"


@dataclass(slots=True)
class Colleague:
    """A worker in this process: its steps, and how to ask it to leave."""

    worker: Worker
    stores: Stores
    stop: asyncio.Event
    task: asyncio.Task[None]

    async def leave(self) -> None:
        """As SIGTERM does; raises what ended it otherwise."""
        self.stop.set()
        await self.task


@dataclass(slots=True)
class House:
    """One night. Banks are named A, B, …; order n goes to bank n modulo their number and costs n + 0.01."""

    settings: Settings
    environ: dict[str, str]
    banks: Banks
    stack: AsyncExitStack
    folder: Path
    record_url: str
    colleagues: list[Colleague] = field(default_factory=list)

    @property
    def ids(self) -> set[str]:
        """Every order's id as the banks see it."""
        return {f"{JOB}:{row[0]}:{DAY}" for row in self.record("SELECT order_id FROM payment_orders")}

    def order(self, count: int) -> Decimal:
        """Put so many orders into the source; what they come to."""
        names = sorted(self.settings.partners)
        with psycopg.connect(self.record_url) as source:
            source.execute(
                "CREATE TABLE payment_orders (order_id bigint, bank_to text, account_to text, amount numeric(14, 2))"
            )
            with source.cursor() as cursor:
                cursor.executemany(
                    "INSERT INTO payment_orders VALUES (%s, %s, %s, %s)",
                    [
                        (n, names[n % len(names)], str(n), Decimal(n) + Decimal("0.01"))
                        for n in range(1, count + 1)
                    ],
                )
        return sum((Decimal(n) + Decimal("0.01") for n in range(1, count + 1)), Decimal(0))

    async def load(self) -> BatchResult:
        """Run the job's batch for the night."""
        job = self.settings.job(JOB).job
        return await asyncio.to_thread(
            run_batch,
            job=job,
            business_date=DAY,
            record=self.record_url,
            owner="test",
            now=lambda: datetime.now(UTC),
        )

    async def hire(self) -> Colleague:
        """One more worker, at work when this returns."""
        assert self.settings.database_url is not None
        assert self.settings.redis_url is not None
        stores = await self.stack.enter_async_context(
            open_stores(
                self.settings.database_url, self.settings.redis_url, key_prefix=self.settings.key_prefix
            )
        )
        webhook = await self.stack.enter_async_context(Webhook.open(connections=64))
        worker = Worker(stores, webhook, self.settings.partners, routes=self.settings.routes)
        stop = asyncio.Event()
        colleague = Colleague(worker, stores, stop, asyncio.create_task(worker.run(stop)))
        self.colleagues.append(colleague)
        return colleague

    @contextmanager
    def process(self, *command: str, failpoint: str = "") -> Iterator[subprocess.Popen[bytes]]:
        """A `madeira` process of its own, ended with the block by its pid."""
        environ = self.environ | ({"MADEIRA_FAILPOINT": failpoint} if failpoint else {})
        with (self.folder / f"{command[0]}.log").open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "madeira", *command],
                env=environ,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        try:
            yield process
        finally:
            if process.poll() is None:
                process.kill()
            process.wait()

    def record(self, query: str) -> list[TupleRow]:
        """Ask PostgreSQL, past any cable."""
        with psycopg.connect(self.record_url) as record:
            return record.execute(query.encode()).fetchall()

    def statuses(self) -> dict[str, tuple[str, bool]]:
        """Status and possible_duplicate of every delivery, by id."""
        rows = self.record(
            "SELECT e.source || ':' || e.event_id, d.status::text, d.possible_duplicate "
            "FROM delivery AS d JOIN event AS e ON e.id = d.event"
        )
        return {key: (status, twice) for key, status, twice in rows}

    def accepted(self) -> list[Entry]:
        """The ledger's lines of payments that a bank accepted, first times and repeated ones."""
        return [entry for entry in self.banks.entries() if entry.accepted]

    async def until(self, ask: Callable[[], object], *, patience_s: float = 120.0) -> None:
        """The one wait: look at what can be seen from outside until it is so. Ends early when a worker fell over."""
        async with asyncio.timeout(patience_s):
            while not ask():
                for colleague in self.colleagues:
                    if colleague.task.done() and not colleague.stop.is_set():
                        await colleague.task
                await asyncio.sleep(0.05)

    async def received(self, count: int) -> None:
        """Until the banks have so many requests in their ledger."""
        await self.until(lambda: len(self.banks.entries()) >= count)

    async def drained(self) -> None:
        """Until every delivery has its end in PostgreSQL."""
        await self.until(
            lambda: self.statuses() and all(s in {"succeeded", "dead"} for s, _ in self.statuses().values())
        )


@asynccontextmanager
async def house(
    database_url: str,
    redis_url: str,
    key_prefix: str,
    folder: Path,
    *,
    record_url: str | None = None,
    qps: int = 200,
    answer_within: str = "5s",
    **behaviours: Bank,
) -> AsyncIterator[House]:
    """A night against these servers. `record_url` is the database past a cable."""
    async with AsyncExitStack() as stack:
        receiving = await stack.enter_async_context(banks(folder, **behaviours))
        (folder / "orders.sql").write_text(QUERY, encoding="utf-8")
        (folder / "jobs.toml").write_text(
            _jobs(receiving, sorted(behaviours), qps, answer_within), encoding="utf-8"
        )
        environ = {
            "MADEIRA_DATABASE_URL": database_url,
            "MADEIRA_REDIS_URL": redis_url,
            "MADEIRA_CONFIG": str(folder / "jobs.toml"),
            "MADEIRA_KEY_PREFIX": key_prefix,
            "MADEIRA_VAR": str(folder / "var"),
            "SOURCE_DSN": record_url or database_url,
        }
        own = {name: value for name, value in os.environ.items() if not name.startswith("MADEIRA_")}
        found = House(load(environ), own | environ, receiving, stack, folder, record_url or database_url)
        try:
            yield found
        finally:
            for colleague in found.colleagues:
                colleague.task.cancel()
            await asyncio.gather(*(c.task for c in found.colleagues), return_exceptions=True)


def _jobs(receiving: Banks, names: list[str], qps: int, timeout: str) -> str:
    partners = "".join(
        f"""
[partners.{name}]
endpoint = "{receiving.endpoint(name)}"
qps = {qps}
success = "success"
retry_codes = ["TRY_LATER"]
timeout = "{timeout}"
lateness = "400ms"
guard = "500ms"
levels = ["1s"]
allow_private = true
"""
        for name in names
    )
    return f"""
[[jobs]]
id = "{JOB}"
start = "00:00"
timezone = "UTC"
calendar = "all"
source = {{ dsn_env = "SOURCE_DSN", query_file = "orders.sql" }}
event_id = ["order_id", "business_date"]
partner = "bank_to"
amount = "amount"
currency = "CZK"
{partners}"""


class Cable:
    """A port on this machine that leads to a server until it is pulled; `url` is the server's by this way."""

    def __init__(self, url: str) -> None:
        self._target = urlsplit(url)
        self._lines: set[asyncio.Task[None]] = set()
        self._pulled = False
        self._server: asyncio.Server | None = None

    async def __aenter__(self) -> Cable:
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        lines = list(self._lines)
        self.pull()
        await asyncio.gather(*lines, return_exceptions=True)

    @property
    def url(self) -> str:
        """The server's URL with this cable's port."""
        assert self._server is not None
        credentials, at, _ = self._target.netloc.rpartition("@")
        port = self._server.sockets[0].getsockname()[1]
        return urlunsplit(self._target._replace(netloc=f"{credentials}{at}127.0.0.1:{port}"))

    def pull(self) -> None:
        """End every connection; new ones are ended at once."""
        self._pulled = True
        for line in self._lines:
            line.cancel()

    def mend(self) -> None:
        """Let new connections through again."""
        self._pulled = False

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        line = asyncio.create_task(self._line(reader, writer))
        self._lines.add(line)
        line.add_done_callback(self._lines.discard)

    async def _line(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        ends = [writer]
        try:
            if not self._pulled:
                there_reader, there = await asyncio.open_connection(self._target.hostname, self._target.port)
                ends.append(there)
                async with asyncio.TaskGroup() as group:
                    ways = [
                        group.create_task(_pipe(reader, there)),
                        group.create_task(_pipe(there_reader, writer)),
                    ]
                    await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
                    for way in ways:
                        way.cancel()
        finally:
            for end in ends:
                end.transport.abort()
                with suppress(OSError):
                    await end.wait_closed()


async def _pipe(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await source.read(65536):
            target.write(data)
            await target.drain()


def ended_by_itself(process: subprocess.Popen[bytes]) -> bool:
    """Whether a failpoint's SIGKILL ended it."""
    return process.poll() == -signal.SIGKILL
