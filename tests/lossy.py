"""A way to a server on which an answer can get lost, or the end of what was asked, and nobody hears of it."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Self
from urllib.parse import urlsplit, urlunsplit


class Lossy:
    """A port on this machine that leads to a server; `url` is the server's by this way."""

    def __init__(self, url: str) -> None:
        self._target = urlsplit(url)
        self._lines: set[asyncio.Task[None]] = set()
        self._wanted: bytes | None = None
        self._last: bytes | None = None
        self._server: asyncio.Server | None = None

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        lines = list(self._lines)
        for line in lines:
            line.cancel()
        await asyncio.gather(*lines, return_exceptions=True)

    @property
    def url(self) -> str:
        """The server's URL with this port."""
        assert self._server is not None
        credentials, at, _ = self._target.netloc.rpartition("@")
        port = self._server.sockets[0].getsockname()[1]
        return urlunsplit(self._target._replace(netloc=f"{credentials}{at}127.0.0.1:{port}"))

    def lose_answer_to(self, text: bytes) -> None:
        """The next question with this text reaches the server; its answer is dropped and the connection is cut."""
        self._wanted = text

    def cut_before(self, text: bytes) -> None:
        """Of what is asked together, what stands before this text reaches the server; then the connection is cut."""
        self._last = text

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        line = asyncio.create_task(self._line(reader, writer))
        self._lines.add(line)
        line.add_done_callback(self._lines.discard)

    async def _line(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there_reader, there = await asyncio.open_connection(self._target.hostname, self._target.port)
        asked = asyncio.Event()
        ways = {
            asyncio.create_task(self._ask(reader, there, asked)),
            asyncio.create_task(self._answer(there_reader, writer, asked)),
        }
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            # First, and without waiting: this may be cancelled while it ends.
            for end in (writer, there):
                end.transport.abort()
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)
            for end in (writer, there):
                with suppress(OSError):
                    await end.wait_closed()

    async def _ask(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, asked: asyncio.Event
    ) -> None:
        while data := await reader.read(1 << 16):
            if self._wanted is not None and self._wanted in data:
                self._wanted = None
                asked.set()
            if self._last is not None and self._last in data:
                data, self._last = data[: data.index(self._last)], None
                asked.set()
                writer.write(data)
                writer.write_eof()
                await asyncio.Event().wait()  # the server answers, or hangs up, and that ends both ways
            writer.write(data)
            await writer.drain()

    async def _answer(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, asked: asyncio.Event
    ) -> None:
        while data := await reader.read(1 << 16):
            if asked.is_set():
                return
            writer.write(data)
            await writer.drain()
