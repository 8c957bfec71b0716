"""What a bench runs on: embedded servers of its own, a source table, a jobs file, a receiver, real processes."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import psycopg

from madeira.embedded import Embedded
from sinks.migrate import migrate
from tests.servers import sibling

ROOT = Path(__file__).resolve().parents[2]
BUSINESS_DATE = "2026-01-15"
KEY = "bench-signing-key"
DURABILITIES = ("redis", "postgres")

_JOB = """
[[jobs]]
id = "bench"
start = "01:00"
timezone = "UTC"
calendar = "all"
source = {{ dsn_env = "BENCH_DSN", query_file = "bench.sql" }}
event_id = ["order_id"]
partner = "partner"
amount = "amount"
currency = "CZK"
"""
_PARTNER = """
[partners.{name}]
endpoint = "http://127.0.0.1:{port}/{path}"
qps = {qps}
max_in_flight = {max_in_flight}
signing_key_env = "BENCH_KEY"
allow_private = true
"""
_SILENT = """\
timeout = "1s"
max_attempts = 1
breaker_failures = 0
"""
_SOURCE = """
[sources.{durability}]
key_env = ["BENCH_SOURCE_KEY"]
durability = "{durability}"
rate = 1_000_000
max_body = 262_144
"""
_ROUTE = """
[[routes]]
to = ["{routing_key}"]
"""


@dataclass(frozen=True, slots=True)
class Rate:
    """A partner of the bench: its name is the letter Q and its rate, or `P`; a `silent` one never answers."""

    name: str
    qps: int
    max_in_flight: int = 100
    silent: bool = False


@dataclass(frozen=True, slots=True)
class Serving:
    """A server that listens on `port`."""

    port: int
    process: psutil.Process


@dataclass(frozen=True, slots=True)
class Sent:
    """What the senders saw. `answers` counts events by status and word, `202 accepted` for one."""

    seconds: float
    per_second: float
    p50_ms: float
    p99_ms: float
    cpu_share: float
    answers: dict[str, int]


@dataclass(frozen=True, slots=True)
class Site:
    """Servers, folder and receiver of one bench."""

    folder: Path
    database_url: str
    redis_url: str
    redis_pid: int
    receiver: int

    @property
    def environ(self) -> dict[str, str]:
        """For Madeira's processes."""
        return {
            **os.environ,
            "MADEIRA_DATABASE_URL": self.database_url,
            "MADEIRA_REDIS_URL": self.redis_url,
            "MADEIRA_CONFIG": str(self.folder / "jobs.toml"),
            "MADEIRA_LOG": "WARNING",
            "BENCH_DSN": self.source_url,
            "BENCH_KEY": KEY,
            "BENCH_SOURCE_KEY": KEY,
        }

    @property
    def source_url(self) -> str:
        """The accounting database, on the same server."""
        return sibling(self.database_url, "accounting")

    def write_jobs(self, rates: Sequence[Rate]) -> None:
        """The jobs file and its query: a batch's, and two sources of live events named by their durability."""
        partners = [
            _PARTNER.format(
                name=r.name,
                path=f"silent/{r.name}" if r.silent else r.name,
                port=self.receiver,
                qps=r.qps,
                max_in_flight=r.max_in_flight,
            )
            + (_SILENT if r.silent else "")
            for r in rates
        ]
        sources = [_SOURCE.format(durability=durability) for durability in DURABILITIES]
        (self.folder / "jobs.toml").write_text(_JOB.format() + "".join([*sources, _ROUTE, *partners]))
        (self.folder / "bench.sql").write_text("SELECT * FROM orders ORDER BY order_id")

    def fill(self, rows: Mapping[str, int], *, size: int = 0) -> None:
        """The source table: so many rows for each partner, each padded so that its body has about `size` bytes."""
        with psycopg.connect(self.source_url, autocommit=True) as connection:
            connection.execute("DROP TABLE IF EXISTS orders")
            connection.execute(
                "CREATE TABLE orders (order_id bigint PRIMARY KEY, partner text NOT NULL, account_to text NOT NULL,"
                " amount numeric(14, 2) NOT NULL, symbol text NOT NULL, note text NOT NULL)"
            )
            first = 1
            for partner, count in rows.items():
                connection.execute(
                    "INSERT INTO orders SELECT n, %(partner)s, lpad((n * 7919 %% 100000000)::text, 8, '0'),"
                    " (n %% 1000000) / 100.0 + 1, 'SIPO', repeat('x', %(pad)s)"
                    " FROM generate_series(%(first)s::bigint, %(last)s::bigint) AS n",
                    {
                        "partner": partner,
                        "first": first,
                        "last": first + count - 1,
                        "pad": max(0, size - 110),
                    },
                )
                first += count
            connection.execute("VACUUM ANALYZE orders")

    def madeira(self, *arguments: str) -> subprocess.Popen[bytes]:
        """Start a Madeira process of this site; its log lines go to the folder."""
        with (self.folder / f"{arguments[0]}.log").open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-m", "madeira", *arguments],
                env=self.environ,
                cwd=ROOT,
                stdout=log,
                stderr=log,
            )

    @contextmanager
    def serve(self) -> Iterator[Serving]:
        """One process of `madeira serve` that is ready."""
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        process = self.madeira("serve", "--listen", f"127.0.0.1:{port}")
        try:

            def ready() -> bool:
                if process.poll() is not None:
                    raise RuntimeError(f"serve ended with {process.returncode}, see {self.folder}/serve.log")
                try:
                    with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=5):
                        return True
                except OSError:
                    return False

            wait_until(ready, seconds=30)
            yield Serving(port, psutil.Process(process.pid))
        finally:
            end(process)

    def send(self, port: int, *arguments: str | int) -> Sent:
        """Post events to `port` from a process of its own, see senders.py."""
        with self.sending(port, *arguments) as process:
            said, _ = process.communicate()
        if process.returncode:
            raise RuntimeError(f"the senders ended with {process.returncode}")
        return Sent(**json.loads(said))

    @contextmanager
    def sending(self, port: int, *arguments: str | int) -> Iterator[subprocess.Popen[bytes]]:
        """The same, while something else is done."""
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.bench.senders", "--port", str(port), *map(str, arguments)],
            cwd=ROOT,
            stdout=subprocess.PIPE,
        )
        try:
            yield process
        finally:
            end(process)

    def run(self, *arguments: str) -> str:
        """Run a Madeira command to its end; returns what it printed. Raises for a failing one."""
        done = subprocess.run(
            [sys.executable, "-m", "madeira", *arguments],
            env=self.environ, cwd=ROOT, capture_output=True, text=True, check=False,
        )  # fmt: skip
        if done.returncode:
            raise RuntimeError(
                f"madeira {' '.join(arguments)} ended with {done.returncode}: {done.stderr[-2000:]}"
            )
        return done.stdout

    def ask(self, path: str) -> Any:
        """Ask the receiver."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.receiver}{path}", timeout=60) as answer:
            return json.load(answer)

    def clear(self) -> None:
        """Forget every batch and all of Redis: the servers are this bench's own."""
        with psycopg.connect(self.database_url, autocommit=True) as connection:
            connection.execute(
                "TRUNCATE event, delivery, delivery_log, batch, batch_total, batch_partner, business_day_run,"
                " outcome_offset, worker, report_run, unrouted, reshaped, conflict RESTART IDENTITY CASCADE"
            )
            connection.execute("UPDATE generation SET number = 0, state = 'open', run_id = '', suspects = ''")
        self.redis_command("FLUSHALL")
        self.ask("/reset")

    def redis_command(self, *words: str) -> Any:
        """One command to this bench's own Valkey."""
        import redis

        with redis.Redis.from_url(self.redis_url) as client:
            return client.execute_command(*words)  # type: ignore[no-untyped-call]


@contextmanager
def site(folder: Path) -> Iterator[Site]:
    """Open everything below `folder`; ended with whatever was started."""
    with ExitStack() as opened:
        embedded = opened.enter_context(Embedded.start(folder / "var"))
        servers = embedded.servers
        migrate(servers.database_url)
        with psycopg.connect(servers.database_url, autocommit=True) as connection:
            connection.execute("CREATE DATABASE accounting")
        port_file = folder / "receiver.port"
        receiver = subprocess.Popen([sys.executable, "-m", "tests.bench.receiver", str(port_file)], cwd=ROOT)
        opened.callback(end, receiver)
        wait_until(port_file.exists, seconds=15)
        yield Site(
            folder, servers.database_url, servers.redis_url, servers.redis_pid, int(port_file.read_text())
        )


def end(process: subprocess.Popen[bytes], *, patience_s: float = 40.0) -> None:
    """Ask a process to leave and wait for it."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(patience_s)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def wait_until(condition: Any, *, seconds: float, every: float = 0.05) -> None:
    """Wait in real time, as benches may. Raises `TimeoutError`."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {seconds} s")
        time.sleep(every)


def cpu_s(processes: Sequence[psutil.Process]) -> float:
    """CPU seconds of these processes and their children so far."""
    total = 0.0
    for process in processes:
        for each in (process, *process.children(recursive=True)):
            times = each.cpu_times()
            total += times.user + times.system
    return total


def rss_mib(process: psutil.Process) -> float:
    """Resident MiB of the largest of the process and its children."""
    return max(each.memory_info().rss for each in (process, *process.children(recursive=True))) / 2**20
