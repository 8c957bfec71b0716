"""Private Valkey and PostgreSQL under one directory, for whoever gives no URL.

Whichever process comes first starts them, the others reuse them, any of them starts again what died, and the
last one that leaves stops them. Data stays. Both listen on 127.0.0.1 only, with a password of their own.

Three locks (``flock``, so that a killed process gives them back by dying) carry the whole protocol::

    lock             held while starting or stopping: one at a time
    users            shared, held by each process that uses the servers: who can have it alone is the last
    <server>/alive   held by the server itself, which inherits it: whether it lives needs no pid file
"""

import fcntl
import json
import os
import secrets
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Self

from madeira.embedded_postgres import PrivatePostgres
from madeira.embedded_server import (
    Died,
    EmbeddedError,
    awaited_pid,
    free_port,
    lives,
    lock_if_free,
    open_lock,
    port_is_free,
    settled,
    write_private,
)
from madeira.embedded_valkey import PrivateValkey

_STARTS = 3
"""How often a server is started that dies while it is waited for."""

__all__ = ["Embedded", "EmbeddedError", "EmbeddedServers", "EmbeddedStatus", "ensure", "status", "stop"]


@dataclass(frozen=True, slots=True)
class EmbeddedServers:
    """Both servers as they run now. The URLs contain a password and stay the same over restarts."""

    redis_url: str
    database_url: str
    redis_pid: int
    database_pid: int


@dataclass(frozen=True, slots=True)
class EmbeddedStatus:
    """What is found without starting anything: no URL before the first start, no pid while it doesn't run."""

    directory: Path
    redis_url: str | None
    database_url: str | None
    redis_pid: int | None
    database_pid: int | None


@dataclass(frozen=True, slots=True)
class _State:
    """``embedded.json``: where the servers listen, kept over restarts so that clients' URLs stay valid."""

    redis_port: int
    database_port: int
    password: str
    database_made: bool = False

    def valkey(self, directory: Path, *, durable: bool = True) -> PrivateValkey:
        return PrivateValkey(directory / "valkey", self.redis_port, self.password, durable)

    def postgres(self, directory: Path, *, durable: bool = True) -> PrivatePostgres:
        return PrivatePostgres(directory / "postgres", self.database_port, self.password, durable)


class Embedded:
    """One process's use of the servers below a directory; ``release`` (or leaving ``with``) gives it up.

    A process that is killed has given it up too. Forked children count as users until they end.
    """

    __slots__ = ("_directory", "_durable", "_users", "servers")

    def __init__(self, directory: Path, users: int, servers: EmbeddedServers, *, durable: bool) -> None:
        self._directory = directory
        self._users: int | None = users
        self._durable = durable
        self.servers = servers

    @classmethod
    def start(cls, directory: Path, *, durable: bool = True) -> Self:
        """Start what doesn't run and count as a user. ``durable=False`` is for tests: fast, nothing is safe.

        Raises EmbeddedError.
        """
        directory = _prepared(directory)
        with _locked(directory):
            users = open_lock(directory / "users")
            try:
                fcntl.flock(users, fcntl.LOCK_SH)
                servers = _ensure(directory, durable=durable)
            except BaseException:
                os.close(users)
                raise
        return cls(directory, users, servers, durable=durable)

    def again(self) -> EmbeddedServers:
        """Start again what died; quick when both run. Raises EmbeddedError."""
        self.servers = ensure(self._directory, durable=self._durable)
        return self.servers

    def release(self) -> bool:
        """Stop being a user; the last one stops both servers and gets True. Twice is harmless."""
        if self._users is None:
            return False
        with _locked(self._directory):
            os.close(self._users)
            self._users = None
            alone = lock_if_free(self._directory / "users")
            if alone is None:
                return False
            try:
                _stop(self._directory)
            finally:
                os.close(alone)
            return True

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


def ensure(directory: Path, *, durable: bool = True) -> EmbeddedServers:
    """Both servers run when this returns, at the same URLs as ever; does not count as a user.

    A port that another program has taken meanwhile is the one case in which a URL changes.
    Raises EmbeddedError.
    """
    directory = _prepared(directory)
    with _locked(directory):
        return _ensure(directory, durable=durable)


def stop(directory: Path) -> None:
    """Stop both servers cleanly, whoever uses them; harmless when none runs. Raises EmbeddedError."""
    directory = directory.absolute()
    if directory.is_dir():
        with _locked(directory):
            _stop(directory)


def status(directory: Path) -> EmbeddedStatus:
    """Look, without starting or waiting for anything."""
    directory = directory.absolute()
    state = _read_state(directory)
    if state is None:
        return EmbeddedStatus(directory, None, None, None, None)
    valkey, postgres = state.valkey(directory), state.postgres(directory)
    return EmbeddedStatus(
        directory=directory,
        redis_url=valkey.url,
        database_url=postgres.url,
        redis_pid=valkey.pid() if lives(valkey.home) else None,
        database_pid=postgres.pid() if lives(postgres.home) else None,
    )


def _ensure(directory: Path, *, durable: bool) -> EmbeddedServers:
    for _ in range(_STARTS - 1):
        try:
            return _ensured(directory, durable=durable)
        except Died:
            continue
    return _ensured(directory, durable=durable)


def _ensured(directory: Path, *, durable: bool) -> EmbeddedServers:
    state = _read_state(directory)
    if state is None:
        state = _written(directory, _State(free_port(), free_port(), secrets.token_hex(16)))

    if not settled(state.valkey(directory)):
        if not port_is_free(state.redis_port):
            state = _written(directory, replace(state, redis_port=free_port()))
        state.valkey(directory, durable=durable).start()
    if not settled(state.postgres(directory)):
        if not port_is_free(state.database_port):
            state = _written(directory, replace(state, database_port=free_port()))
        state.postgres(directory, durable=durable).start()

    valkey, postgres = state.valkey(directory), state.postgres(directory)
    redis_pid, database_pid = awaited_pid(valkey), awaited_pid(postgres)
    if not state.database_made:
        postgres.make_database()
        _written(directory, replace(state, database_made=True))
    return EmbeddedServers(valkey.url, postgres.url, redis_pid, database_pid)


def _stop(directory: Path) -> None:
    state = _read_state(directory)
    if state is not None:
        state.valkey(directory).stop()
        state.postgres(directory).stop()


def _prepared(directory: Path) -> Path:
    directory = directory.absolute()
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    return directory.resolve()


@contextmanager
def _locked(directory: Path) -> Iterator[None]:
    lock = open_lock(directory / "lock")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


def _read_state(directory: Path) -> _State | None:
    path = directory / "embedded.json"
    try:
        return _State(**json.loads(path.read_text()))
    except FileNotFoundError:
        return None
    except (ValueError, TypeError) as error:
        raise EmbeddedError(f"{path} is damaged ({error}): restore it from a copy") from error


def _written(directory: Path, state: _State) -> _State:
    write_private(directory / "embedded.json", json.dumps(asdict(state), indent=1) + "\n")
    return state


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["stop", where]:
            stop(Path(where))
        case _:
            sys.exit("usage: python -m madeira.embedded stop DIRECTORY")
