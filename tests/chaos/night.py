"""One night to be disturbed: private servers, the accounting source, the banks, and the processes of Madeira.

Everything lives below one folder and listens on 127.0.0.1. What is asked at the end comes from the three
ledgers themselves: the source's rows, PostgreSQL's deliveries, and the file in which the banks wrote down
each request before they answered it.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from pathlib import Path
from typing import TypeVar
from urllib.parse import urlsplit, urlunsplit

import msgspec
import psycopg
import redis

from madeira.bank_ledger import Entry
from madeira.embedded import Embedded, EmbeddedError, status
from madeira.embedded_server import free_port
from streams.keys import Keys
from tests.chaos.shop import SURE, SWIFT, Shop

T = TypeVar("T")
JOB = "payment-orders"
KEY = "a-key-that-only-these-banks-know"
_TREE = Path(__file__).resolve().parents[2]
_ORDERS = _TREE / "data" / "payment_orders.csv"
_QUERY = _TREE / "queries" / "payment_orders.sql"
_BANKS = ("QR", "YZ", "AB", "WX", "ST", "KL", "UV", "IJ", "GH", "OP", "EF", "MN", "CD")
_DIFFICULT = {
    "YZ": {"refuse_accounts": ["33", "91"]},
    "KL": {"soft_fail_every": 7},
    "GH": {"reset_once": True},
    "EF": {"unavailable_requests": 20},
}


class Broken(AssertionError):
    """A night that does not come to its end; the text says where it stood and where its logs are."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the three ledgers say of one night. A promise is broken where `broken` names it."""

    orders: int
    delivered: int
    dead: int
    open: int
    lost: int
    twice: int
    flagged: int
    twice_unflagged: int
    reconcile_exit: int
    over_qps: float
    fell_over: int
    live: int
    """Events that were answered 202."""
    forgotten: int
    """Those of them that Redis alone had, and lost: never more than 0 but where it lost data itself."""
    most_mib: int
    """What the largest `serve` or `work` took."""
    broken: tuple[str, ...]


@dataclass(slots=True)
class Night:
    """The stage. `start_*` gives a process, `kill` ends one the hard way, `drained` waits, `verdict` looks."""

    folder: Path
    day: date
    qps: int
    orders: int
    environ: dict[str, str]
    embedded: Embedded
    live_at: int
    """The port of `serve`."""
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)
    killed: set[int] = field(default_factory=set)
    shop: Shop | None = None
    forgets: bool = False
    """Set by whoever takes from Redis what it had answered for."""
    qps_changed: tuple[int, int] | None = None
    """Lowest and highest rate of a night in which it is changed."""

    # -- processes ----------------------------------------------------------------------------------------

    def start(self, *command: str, failpoint: str = "") -> subprocess.Popen[bytes]:
        """One `madeira` process; its log is a file of its own in the folder."""
        environ = self.environ | ({"MADEIRA_FAILPOINT": failpoint} if failpoint else {})
        name = f"{len(self.processes):02}-{command[0]}"
        with (self.folder / f"{name}.log").open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "madeira", *command],
                env=environ, cwd=self.folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                start_new_session=True,
            )  # fmt: skip
        self.processes.append(process)
        return process

    def serve(self, *, failpoint: str = "") -> subprocess.Popen[bytes]:
        """`madeira serve` at the night's port."""
        return self.start("serve", "--listen", f"127.0.0.1:{self.live_at}", failpoint=failpoint)

    def open_shop(self, rate: float = 60.0) -> None:
        """Live events from now on, until `close_shop` or the end of the scenario."""
        self.shop = Shop(f"http://127.0.0.1:{self.live_at}", KEY, _BANKS, rate)
        self.shop.open()

    def sold(self, count: int) -> None:
        """Wait until so many live events have been answered 202."""
        self.until(
            lambda: self.shop is not None and len(self.shop.sold) >= count, f"{count} live events taken"
        )

    def close_shop(self) -> None:
        """No new live events; returns when each one that was begun has had its 202."""
        if self.shop is not None:
            self.shop.close()
            self.until(self.shop.closed, "every live event has its answer")

    def load(self, *, failpoint: str = "") -> subprocess.Popen[bytes]:
        """`madeira batch run` for the night's date."""
        return self.start("batch", "run", JOB, "--date", self.day.isoformat(), failpoint=failpoint)

    def load_whole(self) -> None:
        """The batch is released when this returns."""
        self.until(lambda: self.load().wait() == 0, "the batch is loaded", every=0.5)

    def kill(self, process: subprocess.Popen[bytes]) -> None:
        """SIGKILL, and wait for the end."""
        process.kill()
        process.wait()
        self.killed.add(process.pid)

    def died(self, process: subprocess.Popen[bytes], *, within_s: float = 60.0) -> bool:
        """Wait for a failpoint: True once it has killed the process, False if it was not passed in time."""
        try:
            code = process.wait(within_s)
        except subprocess.TimeoutExpired:
            return False
        if code != -signal.SIGKILL:
            raise Broken(f"left with {code} instead of dying at its failpoint: see {self.folder}")
        self.killed.add(process.pid)
        return True

    def kill_valkey(self) -> None:
        """SIGKILL to the private Valkey; whoever works starts it again."""
        self._kill_server(lambda: status(self.folder / "var").redis_pid)

    def kill_postgres(self) -> None:
        """SIGKILL to the private PostgreSQL's first process."""
        self._kill_server(lambda: status(self.folder / "var").database_pid)

    def _kill_server(self, pid: Callable[[], int | None]) -> None:
        found = self.until(pid, "the server to be killed answers")
        os.kill(found, signal.SIGKILL)

    def flush(self) -> None:
        """FLUSHALL: everything that Redis knew is gone, its run_id stays."""
        with redis.Redis.from_url(self.embedded.servers.redis_url) as client:
            client.flushall()

    def ask_redis(self, *command: str | int) -> object:
        """Any command to the private Valkey."""
        with redis.Redis.from_url(self.embedded.servers.redis_url) as client:
            return client.execute_command(*command)  # type: ignore[no-untyped-call]

    def cut_postgres(self) -> None:
        """End every session of the record."""
        with psycopg.connect(self.embedded.servers.database_url, autocommit=True) as record:
            record.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )

    def freeze(self, seconds: float, *, postgres: bool) -> None:
        """Stop a server and all its processes for a while: it takes connections and does not answer."""
        found = status(self.folder / "var")
        first = found.database_pid if postgres else found.redis_pid
        if first is None:
            raise Broken("the server to be frozen does not run")
        pids = [first, *_children(first)]
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        try:
            time.sleep(seconds)
        finally:
            for pid in reversed(pids):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)

    def configure(self, change: Callable[[str], str]) -> None:
        """Another jobs.toml, put into place at once; running processes see it within about a second."""
        path = self.folder / "jobs.toml"
        draft = path.with_suffix(".draft")
        draft.write_text(change(path.read_text()))
        draft.replace(path)

    def stop(self) -> list[int]:
        """SIGTERM to all that still run; their exit codes."""
        running = [process for process in self.processes if process.poll() is None]
        for process in running:
            process.terminate()
        return [process.wait(30) for process in running]

    # -- waiting ------------------------------------------------------------------------------------------

    def until(
        self, ask: Callable[[], T | None], what: str, *, patience_s: float = 120.0, every: float = 0.1
    ) -> T:
        """The one place that waits: ask until the answer is true."""
        deadline = time.monotonic() + patience_s
        while time.monotonic() < deadline:
            answer = ask()
            if answer:
                return answer
            time.sleep(every)
        raise Broken(f"{what}: not within {patience_s:.0f} s; {self.counts()}; see {self.folder}")

    def received(self, count: int) -> None:
        """Wait until the banks have received so many requests."""
        self.until(lambda: len(self._ledger_bytes().splitlines()) >= count, f"{count} requests received")

    def drained(self, *, patience_s: float = 120.0) -> None:
        """Wait until every order has its end in PostgreSQL and no copy waits in Redis.

        One that was left there would be sent after the verdict, and nobody would see the second send.
        """

        self.close_shop()

        def over() -> bool:
            counts = self.counts()
            ended = sum(counts.values()) >= self.orders and not counts.keys() - {"succeeded", "dead"}
            return ended and self._all_routed() and self._nothing_under_way()

        self.until(over, "every order has its end", patience_s=patience_s, every=0.25)

    def _all_routed(self) -> bool:
        """Whether no accepted event waits for a router; one that is in no partner's lane yet would be missed."""
        try:
            with redis.Redis.from_url(self.embedded.servers.redis_url) as client:
                if any(client.xlen(shard.stream) for shard in Keys().inbound):
                    return False
            with psycopg.connect(self.embedded.servers.database_url, connect_timeout=2) as record:
                [waiting] = record.execute(
                    "SELECT count(*) FROM unrouted WHERE reason IS NULL"
                ).fetchone() or (1,)
        except (redis.RedisError, psycopg.Error):
            return False
        return not waiting

    def _nothing_under_way(self) -> bool:
        """Whether no lane, no delay and no hand holds anything; False while Redis is away or is being recovered."""
        try:
            with redis.Redis.from_url(self.embedded.servers.redis_url) as client:
                paces = [client.hgetall(key) for key in client.scan_iter(match="madeira:*:pace", count=1000)]
        except redis.RedisError:
            return False
        return len(paces) == len(_BANKS) and all(
            pace.get(b"state") == b"open"
            and {pace.get(name) for name in (b"batch", b"live", b"pending")} == {b"0"}
            for pace in paces
        )

    def counts(self) -> Counter[str]:
        """Deliveries by status; empty while PostgreSQL is away or not migrated yet."""
        try:
            with psycopg.connect(self.embedded.servers.database_url, connect_timeout=2) as record:
                rows = record.execute("SELECT status::text, count(*) FROM delivery GROUP BY 1").fetchall()
        except psycopg.Error:
            return Counter()
        return Counter(dict(rows))

    # -- the three ledgers ------------------------------------------------------------------------------------

    def _ledger_bytes(self) -> bytes:
        path = self.folder / "ledger.jsonl"
        data = path.read_bytes() if path.exists() else b""
        return data[: data.rfind(b"\n") + 1]

    def ledger(self) -> list[Entry]:
        """What the banks wrote down."""
        return [msgspec.json.decode(line, type=Entry) for line in self._ledger_bytes().splitlines()]

    def verdict(self) -> Verdict:
        """Reconcile, then compare with the banks' own ledger, to the cent and to the byte."""
        exit_code, report = self._reconcile()
        with psycopg.connect(self.embedded.servers.database_url) as record:
            deliveries = record.execute(
                "SELECT e.source || ':' || e.event_id, d.status::text, d.cause, d.possible_duplicate, "
                "e.amount_minor, encode(sha256(e.body), 'hex') FROM delivery AS d JOIN event AS e ON e.id = d.event"
            ).fetchall()
            batch = record.execute(
                "SELECT count(*), count(*) FILTER (WHERE d.status = 'succeeded'), "
                "coalesce(sum(e.amount_minor) FILTER (WHERE d.status = 'succeeded'), 0)::bigint, "
                "count(*) FILTER (WHERE d.possible_duplicate) "
                "FROM delivery AS d JOIN event AS e ON e.id = d.event WHERE d.batch_id IS NOT NULL"
            ).fetchone()
            left = record.execute(
                "SELECT (SELECT count(*) FROM unrouted), (SELECT count(*) FROM conflict), "
                "(SELECT count(*) FROM inbound_quarantine), (SELECT count(*) FROM outcome_quarantine)"
            ).fetchone()
            sent = record.execute(
                "SELECT partner, sent_at FROM delivery_log WHERE sent_at IS NOT NULL"
            ).fetchall()
        accepted: dict[str, list[Entry]] = defaultdict(list)
        bodies: dict[str, set[str]] = defaultdict(set)
        for entry in self.ledger():
            bodies[entry.id].add(entry.sha256)
            if entry.accepted:
                accepted[entry.id].append(entry)
        known = {key: sha for key, *_, sha in deliveries}
        delivered = {key: minor for key, state, _, _, minor, _ in deliveries if state == "succeeded"}
        dead = {key: cause for key, state, cause, *_ in deliveries if state == "dead"}
        flagged = {key for key, _, _, twice, *_ in deliveries if twice}
        twice = {key for key, entries in accepted.items() if len(entries) > 1}
        unaccounted = accepted.keys() - delivered.keys() - flagged
        sold = {} if self.shop is None else self.shop.sold
        missing = sold.keys() - known.keys()
        forgotten = {key for key in missing if self.forgets and key.startswith(f"{SWIFT}:")}
        orders = sum(key.startswith(f"{JOB}:") for key in known)
        lost = (self.orders - orders) + len(missing - forgotten) + len(delivered.keys() - accepted.keys())
        wrong = [
            key for key, sale in sold.items()
            if key in known and {(e.bank, e.amount_minor) for e in accepted[key]} - {(sale.bank, sale.minor)}
        ]  # fmt: skip
        largest = max((_most_mib(p.pid) for p in self.processes if p.poll() is None), default=0)
        fell_over = [
            p
            for p in self.processes
            if p.poll() not in (None, 0) and p.pid not in self.killed and p.args[3] != "batch"
        ]  # type: ignore[index]
        over = _over_qps(sent, self.qps if self.qps_changed is None else self.qps_changed[1])
        bank_minor = sum(
            entries[0].amount_minor or 0 for key, entries in accepted.items() if key in delivered
        )
        broken = [
            name
            for name, is_broken in (
                ("orders lost", lost),
                ("orders without an end", len(known) - len(delivered) - len(dead)),
                ("received twice and not flagged", twice - flagged),
                ("accepted by the bank, not delivered by Madeira, not flagged", unaccounted),
                (
                    "a body that is not the recorded one",
                    [k for k, found in bodies.items() if found != {known.get(k)}],
                ),
                ("dead without a cause", [key for key, cause in dead.items() if not cause]),
                ("reconcile does not close", exit_code),
                ("amounts differ from the bank's", bank_minor != sum(delivered.values())),
                (
                    "reconcile's totals differ",
                    report != batch,
                ),
                # Processes that are just starting take the CPU from one between its last look at the clock and its
                # write; `make bench` measures the pace itself on a quiet machine.
                ("more than the agreed rate in a second", over > 1.0 + 2 / self.qps),
                ("a process fell over by itself", fell_over),
                ("live events without a 202", len(known) - orders - len(known.keys() & sold.keys())),
                ("a live payment at another bank or of another amount", wrong),
                ("events without a partner, conflicts or quarantined", left != (0, 0, 0, 0)),
                ("answers that no store explains", [] if self.shop is None else self.shop.refused),
                ("more than 250 MiB in a process", largest > 250),
            )
            if is_broken
        ]
        return Verdict(
            orders=self.orders,
            delivered=len(delivered),
            dead=len(dead),
            open=len(known) - len(delivered) - len(dead),
            lost=lost,
            twice=len(twice),
            flagged=len(flagged),
            twice_unflagged=len(twice - flagged),
            reconcile_exit=exit_code,
            over_qps=over,
            fell_over=len(fell_over),
            live=len(sold),
            forgotten=len(forgotten),
            most_mib=largest,
            broken=tuple(broken),
        )

    def _reconcile(self) -> tuple[int, tuple[int, int, int, int]]:
        done = subprocess.run(
            [sys.executable, "-m", "madeira", "reconcile", "--date", self.day.isoformat(), "--json"],
            env=self.environ, cwd=self.folder, capture_output=True, check=False, timeout=120,
        )  # fmt: skip
        (self.folder / "reconcile.log").write_bytes(done.stdout + done.stderr)
        try:
            totals = json.loads(done.stdout.splitlines()[-1])["totals"]
        except (IndexError, ValueError) as error:
            raise Broken(f"reconcile said no JSON: see {self.folder / 'reconcile.log'}") from error
        (total,) = [line for line in totals if line["partner"] is None]
        delivered = total["categories"]["delivered"]
        figures = (
            total["batch"]["count"],
            delivered["count"],
            delivered["minor"],
            total["possible_duplicates"]["count"],
        )
        return done.returncode, figures


def _children(pid: int) -> list[int]:
    listed = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    return [int(child) for child in listed.split()]


def _most_mib(pid: int) -> int:
    """The most memory that a running process has had, in MiB."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) // 1024
    return 0


def _over_qps(sent: list[tuple[str, datetime]], qps: int) -> float:
    """The most that any partner was sent in any sliding second, over its rate."""
    by_partner: dict[str, list[float]] = defaultdict(list)
    for partner, at in sent:
        by_partner[partner].append(at.timestamp())
    most = 0
    for moments in by_partner.values():
        moments.sort()
        first = 0
        for last, at in enumerate(moments):
            while at - moments[first] >= 1.0:
                first += 1
            most = max(most, last - first + 1)
    return most / qps


@contextmanager
def night(folder: Path, *, qps: int = 45, orders: int = 6471, timeout: str = "2s") -> Iterator[Night]:
    """Servers, source and banks of one night, ended with it; processes still running then are killed by pid."""
    folder.mkdir(parents=True, exist_ok=True)
    now = datetime.now(UTC)
    # A zone in which it is about noon: no run of this night meets midnight.
    ahead = 12 - now.hour
    day = datetime.fromtimestamp(now.timestamp() + ahead * 3600, UTC).date()
    banks = _banks(folder)
    try:
        port = _port(folder, banks)
        (folder / "jobs.toml").write_text(_jobs(port, qps=qps, timeout=timeout, zone=f"Etc/GMT{-ahead:+d}"))
        (folder / "queries").mkdir(exist_ok=True)
        (folder / "queries" / "payment_orders.sql").write_text(_QUERY.read_text())
        with Embedded.start(folder / "var") as embedded:
            accounting = _source(embedded.servers.database_url, orders)
            own = {k: v for k, v in os.environ.items() if not k.startswith("MADEIRA_")}
            environ = own | {
                "MADEIRA_CONFIG": str(folder / "jobs.toml"), "MADEIRA_VAR": str(folder / "var"),
                "ACCOUNTING_DSN": accounting, "BANKS_KEY": KEY,
            }  # fmt: skip
            stage = Night(folder, day, qps, orders, environ, embedded, free_port())
            try:
                yield stage
            finally:
                if stage.shop is not None:
                    stage.shop.give_up()
                for process in stage.processes:
                    if process.poll() is None:
                        process.kill()
                        process.wait()
                _servers_up(embedded)
    finally:
        banks.kill()
        banks.wait()


def _servers_up(embedded: Embedded) -> None:
    with suppress(EmbeddedError):
        embedded.again()  # a server that was killed last is stopped in order, too


def _banks(folder: Path) -> subprocess.Popen[bytes]:
    common = {"secret": KEY, "slow_ms": 5}
    script: Mapping[str, object] = {"*": common} | {name: common | more for name, more in _DIFFICULT.items()}
    (folder / "script.json").write_text(json.dumps(script))
    with (folder / "banks.log").open("wb") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "madeira.banks", "--port-file", str(folder / "port"),
             "--ledger", str(folder / "ledger.jsonl"), "--script", str(folder / "script.json")],
            stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
        )  # fmt: skip


def _port(folder: Path, banks: subprocess.Popen[bytes]) -> int:
    for _ in range(400):
        if (folder / "port").exists():
            return int((folder / "port").read_text())
        if banks.poll() is not None:
            break
        time.sleep(0.05)
    raise Broken(f"the banks did not come up: see {folder / 'banks.log'}")


def _jobs(port: int, *, qps: int, timeout: str, zone: str) -> str:
    partners = "".join(
        f"""
[partners.{name}]
endpoint = "http://127.0.0.1:{port}/banks/{name}/payments"
qps = {qps}
signing_key_env = "BANKS_KEY"
success = "success"
retry_codes = ["TRY_LATER"]
timeout = "{timeout}"
levels = ["1s", "2s"]
unknown_retries = 20
max_attempts = 50
allow_private = true
"""
        for name in _BANKS
    )
    return f"""
[sources.{SURE}]
key_env = "BANKS_KEY"
durability = "postgres"

[sources.{SWIFT}]
key_env = "BANKS_KEY"
durability = "redis"

[[routes]]
to = "{{routing_key}}"

[[jobs]]
id = "{JOB}"
start = "00:00"
timezone = "{zone}"
calendar = "all"
source = {{ dsn_env = "ACCOUNTING_DSN", query_file = "queries/payment_orders.sql" }}
event_id = ["order_id", "business_date"]
partner = "bank_to"
amount = "amount"
currency = "CZK"
{partners}"""


def _source(database_url: str, orders: int) -> str:
    accounting = urlunsplit(urlsplit(database_url)._replace(path="/accounting"))
    with psycopg.connect(database_url, autocommit=True) as admin:
        admin.execute("CREATE DATABASE accounting")
    with psycopg.connect(accounting) as source, source.cursor() as cursor:
        cursor.execute(
            "CREATE TABLE payment_orders (order_id bigint PRIMARY KEY, account_id bigint, bank_to text, "
            "account_to text, amount numeric(14, 2), k_symbol text)"
        )
        with cursor.copy("COPY payment_orders FROM STDIN (FORMAT csv, HEADER true, DELIMITER ';')") as copy:
            copy.write(b"".join(_ORDERS.read_bytes().splitlines(keepends=True)[: orders + 1]))
    return accounting
