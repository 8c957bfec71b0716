"""Embedded servers: first comer starts, others reuse, the dead are raised, the last one out stops them."""

from __future__ import annotations

import json
import os
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import psycopg
import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from madeira import embedded
from madeira.embedded import Embedded, EmbeddedError
from madeira.embedded_server import await_end, lock_if_free

USER = """
import sys
from pathlib import Path
from madeira.embedded import Embedded
mine = Embedded.start(Path(sys.argv[1]), durable=False)
print(mine.servers.redis_pid, mine.servers.database_pid, flush=True)
sys.stdin.readline()
print(mine.release(), flush=True)
"""


@pytest.fixture
def var(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "var"
    embedded.stop(tmp_path / "var")


@pytest.fixture
def used(var: Path) -> Iterator[Embedded]:
    with Embedded.start(var, durable=False) as servers:
        yield servers


def _another_process(var: Path, environment: dict[str, str] | None = None) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", USER, str(var)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env=environment,
    )


def _answers(redis_url: str) -> bool:
    with redis.Redis.from_url(redis_url) as client:
        return bool(client.ping())


def _first_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def _kill(pid: int, home: Path) -> None:
    os.kill(pid, signal.SIGKILL)
    await_end(home)


def test_both_serve_and_the_urls_need_a_password(used: Embedded) -> None:
    """Clients reach both by the URLs alone; nobody does without the password."""
    with psycopg.connect(used.servers.database_url) as connection:
        row = connection.execute("SELECT current_setting('server_version_num')::int >= 160000").fetchone()
        assert row == (True,)
        assert connection.info.dbname == "madeira"
    with redis.Redis.from_url(used.servers.redis_url) as client:
        assert client.config_get("maxmemory-policy") == {"maxmemory-policy": "noeviction"}
        port = client.connection_pool.connection_kwargs["port"]
    with (
        redis.Redis(host="127.0.0.1", port=port, retry=Retry(NoBackoff(), 0)) as stranger,
        pytest.raises(redis.AuthenticationError),
    ):
        stranger.ping()


def test_durable_servers_sync_what_they_write(var: Path) -> None:
    """By default: AOF each second, fsync and synchronous commits, as in production."""
    with Embedded.start(var) as used:
        with redis.Redis.from_url(used.servers.redis_url) as client:
            assert client.config_get("append*")["appendonly"] == "yes"
            assert client.config_get("append*")["appendfsync"] == "everysec"
        with psycopg.connect(used.servers.database_url) as connection:
            shown = connection.execute(
                "SELECT current_setting('fsync'), current_setting('synchronous_commit')"
            )
            assert shown.fetchone() == ("on", "on")


def test_a_second_process_reuses_what_the_first_started(used: Embedded, var: Path) -> None:
    """Same pids, and its leaving doesn't stop what another one uses."""
    with _another_process(var) as other:
        assert _first_line(other) == f"{used.servers.redis_pid} {used.servers.database_pid}"
        out, _ = other.communicate("\n")
    assert out.strip() == "False"
    assert embedded.status(var).database_pid == used.servers.database_pid


def test_processes_that_come_at_once_start_one_pair(var: Path) -> None:
    """Whoever is first starts, the others wait and find the same servers."""
    others = [_another_process(var) for _ in range(3)]
    assert len({_first_line(each) for each in others}) == 1
    left = []
    for each in others:
        out, _ = each.communicate("\n")
        left.append(out.strip())
    assert left == ["False", "False", "True"]


def test_the_last_one_out_stops_both_and_data_stays(var: Path) -> None:
    """After the last release nothing runs; the next start finds the data at the same URLs."""
    with Embedded.start(var) as first:
        urls = first.servers.redis_url, first.servers.database_url
        with psycopg.connect(first.servers.database_url) as connection:
            connection.execute("CREATE TABLE kept AS SELECT 42 AS n")
        with redis.Redis.from_url(first.servers.redis_url) as client:
            client.set("kept", "42")
    found = embedded.status(var)
    assert (found.redis_pid, found.database_pid) == (None, None)

    with Embedded.start(var) as second:
        assert (second.servers.redis_url, second.servers.database_url) == urls
        with psycopg.connect(second.servers.database_url) as connection:
            assert connection.execute("SELECT n FROM kept").fetchone() == (42,)
        with redis.Redis.from_url(second.servers.redis_url) as client:
            assert client.get("kept") == b"42"


def test_a_killed_user_is_no_user(var: Path) -> None:
    """kill -9 of a process gives its use back, so that the next one out is the last."""
    with _another_process(var) as other:
        _first_line(other)
        mine = Embedded.start(var, durable=False)
        other.kill()
    assert mine.release() is True


def test_a_starter_that_is_killed_takes_no_server_along(used: Embedded, var: Path) -> None:
    """The servers live in sessions of their own: no Ctrl-C or kill of who started them reaches them."""
    embedded.stop(var)
    with _another_process(var) as starter:
        redis_pid, database_pid = map(int, _first_line(starter).split())
        os.killpg(starter.pid, signal.SIGKILL)
    found = embedded.status(var)
    assert (found.redis_pid, found.database_pid) == (redis_pid, database_pid)


@pytest.mark.parametrize("server", ["valkey", "postgres"])
def test_a_killed_server_comes_back_at_the_same_url(used: Embedded, var: Path, server: str) -> None:
    """kill -9 of either; ``again`` starts that one alone."""
    before = used.servers
    _kill(before.redis_pid if server == "valkey" else before.database_pid, var / server)

    after = used.again()

    assert (after.redis_url, after.database_url) == (before.redis_url, before.database_url)
    assert (after.redis_pid != before.redis_pid) == (server == "valkey")
    assert (after.database_pid != before.database_pid) == (server == "postgres")
    with psycopg.connect(after.database_url) as connection, redis.Redis.from_url(after.redis_url) as client:
        assert connection.execute("SELECT 1").fetchone() == (1,)
        assert client.ping()


def test_a_stale_pid_file_fools_nobody(used: Embedded, var: Path) -> None:
    """A pid file whose number now belongs to another program: the server is known to be dead, and starts."""
    _kill(used.servers.database_pid, var / "postgres")
    pid_file = var / "postgres" / "data" / "postmaster.pid"
    lines = pid_file.read_text().splitlines()
    pid_file.write_text("\n".join([str(os.getpid()), *lines[1:]]) + "\n")
    assert embedded.status(var).database_pid is None

    assert used.again().database_pid not in (None, os.getpid())


def test_a_port_that_was_taken_meanwhile_is_left_to_who_has_it(used: Embedded, var: Path) -> None:
    """The one case in which a URL changes."""
    before = embedded.status(var).redis_url
    _kill(used.servers.redis_pid, var / "valkey")
    port = json.loads((var / "embedded.json").read_text())["redis_port"]
    with socket.create_server(("127.0.0.1", port)):
        after = used.again()
    assert after.redis_url != before
    with redis.Redis.from_url(after.redis_url) as client:
        assert client.ping()


def test_an_initdb_that_was_killed_half_way_is_thrown_away(used: Embedded, var: Path) -> None:
    """What it left is no data directory, and the next start makes one."""
    embedded.stop(var)
    data = var / "postgres" / "data"
    data.rename(data.with_name("data.new"))
    (data.with_name("data.new") / "PG_VERSION").write_text("1")
    state = json.loads((var / "embedded.json").read_text())
    (var / "embedded.json").write_text(json.dumps(state | {"database_made": False}))

    with psycopg.connect(used.again().database_url) as connection:
        assert connection.execute("SELECT 1").fetchone() == (1,)


def test_stop_ends_both_whoever_uses_them(used: Embedded, var: Path) -> None:
    """``stop`` is the operator's; a second one is harmless, and so is one where nothing ever ran."""
    embedded.stop(var)
    embedded.stop(var)
    embedded.stop(var / "nothing-here")
    found = embedded.status(var)
    assert (found.redis_pid, found.database_pid) == (None, None)
    assert not (var / "nothing-here").exists()


def test_release_twice_is_harmless(var: Path) -> None:
    """The second release is nobody's."""
    mine = Embedded.start(var, durable=False)
    assert mine.release() is True
    assert mine.release() is False


def test_secrets_are_readable_by_the_owner_only(used: Embedded, var: Path) -> None:
    """Nobody else reads the password from a file or a list of processes; initdb's copy is gone."""
    for name in ("embedded.json", "valkey/valkey.conf"):
        assert stat.S_IMODE((var / name).stat().st_mode) == 0o600
    assert not (var / "postgres" / "password").exists()
    password = json.loads((var / "embedded.json").read_text())["password"]
    for pid in (used.servers.redis_pid, used.servers.database_pid):
        assert password not in " ".join(psutil.Process(pid).cmdline())


def test_a_deep_directory_with_a_space_works(tmp_path: Path) -> None:
    """Paths longer than a unix socket's 107 bytes, and names that a shell would split, are no trouble."""
    deep = tmp_path / ("d" * 60) / "with space and 'quote" / ("e" * 60)
    with (
        Embedded.start(deep, durable=False) as used,
        psycopg.connect(used.servers.database_url) as connection,
    ):
        assert connection.execute("SELECT 1").fetchone() == (1,)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root has a home that others can't enter")
def test_a_directory_that_only_root_can_enter_works_and_stays_closed(tmp_path: Path) -> None:
    """PostgreSQL can't run as root; a clone below /root works all the same."""
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    with (
        Embedded.start(closed / "var", durable=False) as used,
        psycopg.connect(used.servers.database_url) as connection,
    ):
        assert connection.execute("SELECT 1").fetchone() == (1,)
    assert stat.S_IMODE(closed.stat().st_mode) & 0o066 == 0


def _reachable_by_all(path: Path) -> bool:
    return all(parent.stat().st_mode & 0o001 for parent in path.absolute().parents)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root needs another user for PostgreSQL")
@pytest.mark.skipif(not _reachable_by_all(Path(sys.prefix)), reason="would open the way to this environment")
def test_root_without_user_namespaces_runs_it_as_nobody_and_goes_back(var: Path) -> None:
    """Where ``unshare`` is missing or forbidden; the data serves under either user."""
    with Embedded.start(var, durable=False):
        assert (var / "postgres" / "data").stat().st_uid == 0
    with _another_process(var, environment={"PATH": ""}) as other:
        database_pid = int(_first_line(other).split()[1])
        assert psutil.Process(database_pid).username() == "nobody"
        out, _ = other.communicate("\n")
    assert out.strip() == "True"
    with (
        Embedded.start(var, durable=False) as used,
        psycopg.connect(used.servers.database_url) as connection,
    ):
        assert connection.execute("SELECT 1").fetchone() == (1,)


def test_a_damaged_state_says_so(var: Path) -> None:
    """Never a guess about where the data listens."""
    var.mkdir()
    state = var / "embedded.json"
    state.write_text("{")
    with pytest.raises(EmbeddedError, match=r"embedded\.json is damaged"):
        embedded.ensure(var)
    state.unlink()


def test_a_server_that_dies_while_it_is_looked_at_is_started_again(used: Embedded, var: Path) -> None:
    """Found alive, and dead before the look at both was over: that is no reason to give up."""
    redis_pid, database_pid = used.servers.redis_pid, used.servers.database_pid
    os.kill(database_pid, signal.SIGSTOP)  # holds the look at PostgreSQL, which comes second
    try:
        with ThreadPoolExecutor(1) as pool:
            looking = pool.submit(embedded.ensure, var, durable=False)
            while (free := lock_if_free(var / "lock")) is not None:
                os.close(free)
            assert _answers(used.servers.redis_url)
            os.kill(redis_pid, signal.SIGKILL)
            await_end(var / "valkey")
            os.kill(database_pid, signal.SIGCONT)
            again = looking.result(timeout=60)
    finally:
        os.kill(database_pid, signal.SIGCONT)
    assert again.redis_url == used.servers.redis_url
    assert again.redis_pid != redis_pid
    assert _answers(again.redis_url)
