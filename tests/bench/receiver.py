"""The receiving side of the benches: answers 200 to every POST as fast as asyncio can, and stamps each arrival.

    python -m tests.bench.receiver PORT_FILE

`GET /report` answers, per path, how many posts came, the most of them in any sliding second, and the worst
stall of this process's own loop, without which an arrival says nothing about when the bytes left.
`GET /reset` forgets all of it. Posts below `/silent/` are counted and never answered.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from array import array
from pathlib import Path

import uvloop

_OK = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}"
_TICK_S = 0.002


class Arrivals:
    """Monotonic seconds of every post, per path."""

    def __init__(self) -> None:
        self.at: dict[bytes, array[float]] = {}
        self.worst_stall_s = 0.0

    def report(self) -> bytes:
        """What `GET /report` answers."""
        paths = {
            path.decode(): {"posts": len(at), "max_per_second": most(at)} for path, at in self.at.items()
        }
        return json.dumps({"paths": paths, "worst_stall_ms": self.worst_stall_s * 1000}).encode()

    async def watch(self) -> None:
        """Measure how late this loop runs, for ever."""
        while True:
            asked = time.monotonic()
            await asyncio.sleep(_TICK_S)
            self.worst_stall_s = max(self.worst_stall_s, time.monotonic() - asked - _TICK_S)


def most(at: array[float], *, within_s: float = 1.0) -> int:
    """The most moments (ascending) in any half-open window of `within_s` seconds."""
    found = first = 0
    for last, moment in enumerate(at):
        while at[first] <= moment - within_s:
            first += 1
        found = max(found, last - first + 1)
    return found


class _Http(asyncio.Protocol):
    """Just enough HTTP/1.1 for our own client: whole requests with a Content-Length, kept alive."""

    def __init__(self, arrivals: Arrivals) -> None:
        self._arrivals = arrivals
        self._buffer = b""
        self._transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment] # uvloop's transports are no subclass

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        while True:
            end = self._buffer.find(b"\r\n\r\n")
            if end < 0:
                return
            head = self._buffer[:end]
            length = _content_length(head)
            if len(self._buffer) < end + 4 + length:
                return
            self._buffer = self._buffer[end + 4 + length :]
            method, path, _ = head.split(b" ", 2)
            if method == b"POST":
                at = self._arrivals.at.get(path)
                if at is None:
                    at = self._arrivals.at[path] = array("d")
                at.append(time.monotonic())
                if not path.startswith(b"/silent/"):
                    self._transport.write(_OK)
            else:
                self._answer(path)

    def _answer(self, path: bytes) -> None:
        if path == b"/reset":
            self._arrivals.at.clear()
            self._arrivals.worst_stall_s = 0.0
        body = self._arrivals.report() if path == b"/report" else b"{}"
        self._transport.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))


def _content_length(head: bytes) -> int:
    at = head.lower().find(b"\r\ncontent-length:")
    if at < 0:
        return 0
    return int(head[at + 17 :].split(b"\r\n", 1)[0])


async def serve(port_file: Path) -> None:
    """Serve on a free port of 127.0.0.1, named in `port_file`, until killed."""
    arrivals = Arrivals()
    server = await asyncio.get_running_loop().create_server(lambda: _Http(arrivals), "127.0.0.1", 0)
    ready = port_file.with_suffix(".new")
    ready.write_text(str(server.sockets[0].getsockname()[1]))
    ready.rename(port_file)
    await arrivals.watch()


if __name__ == "__main__":
    uvloop.run(serve(Path(sys.argv[1])))
