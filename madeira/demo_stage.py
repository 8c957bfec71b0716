"""Where the demo plays: its folder, the accounting source, the banks' characters, and the processes of the night.

Below the folder: `jobs.toml` and `queries/` (what an operator would write), `environment` (for the shell of who
looks around), `servers/` (Madeira's own), `banks/` (the banks' ledger), `shop.jsonl` (the shop's book), `logs/` (one
file per process), `reports/`.
"""

from __future__ import annotations

import http.client
import os
import secrets
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit
from zoneinfo import ZoneInfo

import msgspec
import psycopg

from madeira import embedded
from madeira.bank_ledger import Bank
from madeira.demo_shop import SOURCE
from madeira.embedded_server import lock_if_free, write_private
from sinks.statement import statement
from streams.errors import MadeiraError

JOB = "payment-orders"
CURRENCY = "CZK"

_TREE = Path(__file__).resolve().parent.parent
_ORDERS = _TREE / "data" / "payment_orders.csv"
_QUERY = _TREE / "queries" / "payment_orders.sql"
_LOCK = "demo.lock"
_ACCOUNTING = "accounting"
_BANKS_UP_S = 20.0
_LEAVE_S = 20.0
_GIVEN = (
    *("MADEIRA_DATABASE_URL", "MADEIRA_REDIS_URL", "MADEIRA_KEY_PREFIX", "MADEIRA_LOG"),
    "MADEIRA_METRICS_DIR",
)


class DemoFailed(MadeiraError):
    """The demo cannot go on; the text says why and where to look."""


@dataclass(frozen=True, slots=True)
class DemoBank:
    """One bank of the demo: what it agreed to, how it behaves, and that in words."""

    name: str
    qps: int
    behaviour: Bank = field(default_factory=Bank)
    difficulty: str = ""


@dataclass(frozen=True, slots=True)
class Night:
    """What is played. `orders` None is all of them; `patience` is for everything until the last outcome.

    `levels` are the waits before a payment is tried again, as jobs.toml has them. The shop posts an instant
    payment like each `live_every`-th of all orders, `live_rate` a second.
    """

    banks: tuple[DemoBank, ...]
    orders: int | None = None
    live_every: int = 11
    live_rate: float = 20.0
    levels: tuple[str, ...] = ("3s", "6s")
    patience: timedelta = timedelta(seconds=110)


def whole_night() -> Night:
    """All orders, each bank at a rate that takes it about 45 seconds."""
    return Night(
        banks=(
            DemoBank("QR", 14),
            DemoBank("YZ", 12, Bank(refuse_accounts=("33", "91")), "400 for closed accounts"),
            DemoBank("AB", 14, Bank(unavailable_s=6), "503 for the first 6 s"),
            DemoBank("WX", 12),
            DemoBank("ST", 11),
            DemoBank("KL", 13, Bank(soft_fail_every=7), "200 but success: false, later"),
            DemoBank("UV", 12),
            DemoBank("IJ", 11),
            DemoBank("GH", 12, Bank(reset_once=True), "books one, then hangs up"),
            DemoBank("OP", 11, Bank(refuse_every=97), "200 but success: false, never"),
            DemoBank("EF", 11),
            DemoBank("MN", 11, Bank(slow_ms=700), "answers after 0.7 s"),
            DemoBank("CD", 10),
        )
    )


# -- the folder ------------------------------------------------------------------------------------------


@contextmanager
def own_folder(folder: Path) -> Iterator[int]:
    """The folder, empty and ours: what an earlier demo left is removed. Gives the lock, to hand to children.

    Raises `DemoFailed` when another demo is at it, or when the folder holds what no demo has put there.
    """
    if folder.is_dir() and any(folder.iterdir()) and not (folder / _LOCK).is_file():
        raise DemoFailed(f"{folder} holds files that are not a demo's: name another with --folder")
    folder.mkdir(parents=True, exist_ok=True)
    lock = lock_if_free(folder / _LOCK)
    if lock is None:
        raise DemoFailed(f"a demo is running in {folder}, or was left running there: {how_to_stop(folder)}")
    try:
        servers = folder / "servers"
        if servers.is_dir():
            users = lock_if_free(servers / "users")
            if users is None:
                raise DemoFailed(f"somebody uses the servers in {servers}: end that first")
            os.close(users)
            embedded.stop(servers)
        for path in folder.iterdir():
            if path.name == _LOCK:
                continue
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()
        yield lock
    finally:
        os.close(lock)


def how_to_stop(folder: Path) -> str:
    """The command that ends what a demo has left running there; the servers leave with the last process."""
    try:
        pids = (folder / "pids").read_text(encoding="ascii").split()
    except OSError:
        pids = []
    return f"kill {' '.join(pids)}" if pids else "wait for its end"


# -- the night's processes -------------------------------------------------------------------------------


class Cast:
    """The processes of one demo: started as an operator would, each with a log of its own, all ended by `end`."""

    def __init__(self, folder: Path, lock: int, environ: Mapping[str, str]) -> None:
        self._folder = folder
        self._lock = lock
        self._environ = environ
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._passing: set[str] = set()
        (folder / "logs").mkdir()

    def log(self, name: str) -> Path:
        """Where that process writes."""
        return self._folder / "logs" / f"{name}.log"

    def start(self, name: str, module: str, *arguments: str, passing: bool = False) -> None:
        """Start `python -m module arguments` in a session of its own: Ctrl-C reaches only the demo.

        One that is `passing` ends by itself when it has done its part.
        """
        if passing:
            self._passing.add(name)
        with self.log(name).open("ab") as log:
            self._running[name] = subprocess.Popen(
                [sys.executable, "-m", module, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=dict(self._environ),
                start_new_session=True,
                pass_fds=(self._lock,),
            )
        pids = " ".join(str(process.pid) for process in self._running.values())
        (self._folder / "pids").write_text(pids + "\n", encoding="ascii")

    def run(self, *arguments: str, fine: Sequence[int] = (0,)) -> str:
        """Run one `madeira` command to its end and return what it printed. Raises `DemoFailed`."""
        with self.log(arguments[0]).open("ab") as log:
            done = subprocess.run(
                [sys.executable, "-m", "madeira", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                env=dict(self._environ),
                timeout=120,
                check=False,
            )
        printed = done.stdout.decode(errors="replace")
        if done.returncode not in fine:
            said = printed.strip() or _tail(self.log(arguments[0]))
            raise DemoFailed(f"`madeira {' '.join(arguments)}` ended with {done.returncode}: {said}")
        return printed

    def look(self) -> None:
        """Raises `DemoFailed` when one of them has ended by itself."""
        for name, process in self._running.items():
            code = process.poll()
            if code is not None and not (code == 0 and name in self._passing):
                raise DemoFailed(f"{name} ended with {code}, see {self.log(name)}: {_tail(self.log(name))}")

    def over(self, name: str) -> bool:
        """Whether a passing one has done its part."""
        return self._running[name].poll() == 0

    def end(self) -> None:
        """Ask all to leave, the last started first; kill who has not left after 20 s."""
        running = [process for process in reversed(self._running.values()) if process.poll() is None]
        for process in running:
            process.terminate()
        deadline = time.monotonic() + _LEAVE_S
        for process in running:
            try:
                process.wait(max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._running.clear()
        (self._folder / "pids").unlink(missing_ok=True)


def _tail(path: Path) -> str:
    lines = path.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    return lines[-1][:400] if lines else "it wrote nothing"


# -- source, banks, jobs.toml ----------------------------------------------------------------------------


def make_source(database_url: str, *, orders: int | None) -> str:
    """A database of its own for accounting, with the first `orders` payment orders; returns its URL."""
    try:
        text = _ORDERS.read_text(encoding="utf-8")
    except OSError as error:
        raise DemoFailed(f"{_ORDERS} cannot be read: the demo runs from Madeira's source tree") from error
    if orders is not None:
        text = "".join(text.splitlines(keepends=True)[: orders + 1])
    with psycopg.connect(database_url, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {_ACCOUNTING}")
    url = urlunsplit(urlsplit(database_url)._replace(path=f"/{_ACCOUNTING}"))
    with psycopg.connect(url) as connection:
        connection.execute(statement("demo/make_source"))
        with connection.cursor().copy(statement("demo/fill_source")) as copy:
            copy.write(text)
    return url


def open_counter(cast: Cast, listen: str) -> None:
    """Start `madeira serve` and wait until it takes events. Raises `DemoFailed`."""
    cast.start("serve", "madeira", "serve")
    deadline = time.monotonic() + _BANKS_UP_S
    host, _, port = listen.rpartition(":")
    while True:
        connection = http.client.HTTPConnection(host, int(port), timeout=2)
        try:
            connection.request("GET", "/readyz")
            if connection.getresponse().status == http.client.OK:
                return
        except OSError:
            pass
        finally:
            connection.close()
        cast.look()
        if time.monotonic() > deadline:
            raise DemoFailed(f"`madeira serve` does not get ready: see {cast.log('serve')}")
        time.sleep(0.05)


def open_shop(cast: Cast, book: Path, listen: str, night: Night) -> None:
    """Start the shop, which posts its payments, notes them in its book, and then ends."""
    cast.start(
        "shop",
        "madeira.demo_shop",
        *("--url", f"http://{listen}", "--orders", str(_ORDERS), "--book", str(book)),
        *("--every", str(night.live_every), "--rate", str(night.live_rate)),
        passing=True,
    )


def open_banks(cast: Cast, folder: Path, banks: Sequence[DemoBank], key: str) -> int:
    """Start the banks' server, wait until it listens, and return its port. Raises `DemoFailed`."""
    home = folder / "banks"
    home.mkdir()
    script = {bank.name: msgspec.structs.replace(bank.behaviour, secret=key) for bank in banks}
    write_private(home / "script.json", msgspec.json.encode(script).decode())
    port_file = home / "port"
    cast.start(
        "banks",
        "madeira.banks",
        *("--port-file", str(port_file), "--ledger", str(home / "ledger.jsonl")),
        *("--script", str(home / "script.json")),
    )
    deadline = time.monotonic() + _BANKS_UP_S
    while not port_file.exists():
        cast.look()
        if time.monotonic() > deadline:
            raise DemoFailed(f"the banks do not open: see {cast.log('banks')}")
        time.sleep(0.02)
    # It has the key in it, and whoever needed it has read it.
    (home / "script.json").unlink()
    return int(port_file.read_text(encoding="ascii"))


@dataclass(frozen=True, slots=True)
class Due:
    """When the job is due so that the scheduler fires it now, and for which business date."""

    start: str
    timezone: str
    business_date: date


def due_now(now: datetime) -> Due:
    """A minute ago, in a zone in which neither that minute nor the next five are on another date."""
    for zone in ("Europe/Prague", "UTC"):
        local = now.astimezone(ZoneInfo(zone))
        start = local - timedelta(minutes=1)
        if start.date() == (local + timedelta(minutes=5)).date():
            return Due(f"{start:%H:%M}", zone, local.date())
    raise AssertionError("Prague and UTC never have midnight together")


def write_jobs(folder: Path, due: Due, night: Night, port: int) -> Path:
    """The demo's jobs.toml, as an operator would write it; returns its path."""
    (folder / "queries").mkdir()
    shutil.copy(_QUERY, folder / "queries" / _QUERY.name)
    text = f"""\
# Written by `madeira demo`: the night's job, due at once, a shop, and thirteen banks on this machine.

[[jobs]]
id = "{JOB}"
start = "{due.start}"
timezone = "{due.timezone}"
calendar = "all"
source = {{ dsn_env = "ACCOUNTING_DSN", query_file = "queries/{_QUERY.name}" }}
event_id = ["order_id", "business_date"]
partner = "bank_to"
amount = "amount"
currency = "{CURRENCY}"

[sources.{SOURCE}] # posts instant payments over HTTP
key_env = "SHOP_KEY"

[[routes]]
event_type = "payment.*"
to = "{{routing_key}}" # the bank that the event names
"""
    levels = ", ".join(f'"{level}"' for level in night.levels)
    for bank in night.banks:
        text += f"""
[partners.{bank.name}]{f" # {bank.difficulty}" if bank.difficulty else ""}
endpoint = "http://127.0.0.1:{port}/banks/{bank.name}/payments"
qps = {bank.qps}
signing_key_env = "BANKS_KEY"
success = "success"
retry_codes = ["TRY_LATER"]
levels = [{levels}]
timeout = "5s"
allow_private = true
"""
    path = folder / "jobs.toml"
    path.write_text(text, encoding="utf-8")
    return path


def environment(folder: Path, accounting_url: str, key: str, listen: str) -> dict[str, str]:
    """The environment of the night's processes: the secrets are only here."""
    environ = {name: value for name, value in os.environ.items() if name not in _GIVEN}
    environ |= {
        "MADEIRA_CONFIG": str(folder / "jobs.toml"),
        "MADEIRA_VAR": str(folder / "servers"),
        "ACCOUNTING_DSN": accounting_url,
        "BANKS_KEY": key,
        "SHOP_KEY": new_key(),
        "MADEIRA_LISTEN": listen,
    }
    return environ


def note_environment(folder: Path, accounting_url: str) -> Path:
    """A private file for a shell to read, with what later commands need to know of the demo; returns its path."""
    path = folder / "environment"
    names = {
        "MADEIRA_CONFIG": str(folder / "jobs.toml"),
        "MADEIRA_VAR": str(folder / "servers"),
        "ACCOUNTING_DSN": accounting_url,
    }
    lines = [f"unset {name}" for name in _GIVEN]
    lines += [f"export {name}={shlex.quote(value)}" for name, value in names.items()]
    write_private(path, "\n".join(lines) + "\n")
    return path


def new_key() -> str:
    """A signing key for one night."""
    return secrets.token_hex(32)
