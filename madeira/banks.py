"""The receiving partners of the demo, the tests and the benches: real HTTP, a ledger of their own,
difficult on purpose.

One server plays every bank; `POST /banks/<NAME>/payments` chooses one. `GET /_ledger` says what was
received. Each request is a line in the ledger file before it is answered, and a restarted server reads the
file first, so what a bank knows survives a kill of anything, this process included.

    python -m madeira.banks --port-file F --ledger F [--script F] [--host H] [--port N]

The script is JSON: `{"AB": {"unavailable_requests": 40}, "*": {}}`; fields are those of `Bank`, `*` is
every other bank. What they book is in `bank_ledger`.
"""

from __future__ import annotations

import argparse
import asyncio
import gzip
import signal
import socket
import struct
import time
from collections.abc import Callable
from decimal import Decimal
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Final, cast
from zlib import crc32

import msgspec
import uvloop

from madeira.bank_ledger import SECOND_US, Bank, Books, Entry, Hostile, Ledger, Summary
from sinks.partner import SignatureScheme
from sinks.signature import verify

_STALL_EVERY_S: Final = 0.005


class _Order(msgspec.Struct):
    amount: Decimal | None = None
    account_to: str | int = ""


class Banks:
    """The server. `async with Banks(script, ledger=path) as banks:` listens on `banks.port` until the end."""

    def __init__(
        self, script: dict[str, Bank], *, ledger: Path, host: str = "127.0.0.1", port: int = 0
    ) -> None:
        self._host, self._wanted_port = host, port
        self.ledger = Ledger(script, ledger)
        self._server: asyncio.Server | None = None
        self._stall: asyncio.TimerHandle | None = None
        self._worst_stall_s = 0.0
        self.connections: set[_Connection] = set()
        self.port = 0

    async def __aenter__(self) -> Banks:
        self.ledger.open()
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(
            lambda: _Connection(self), self._host, self._wanted_port, backlog=1024
        )
        self.port = self._server.sockets[0].getsockname()[1]
        self._watch(None)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        if self._stall is not None:
            self._stall.cancel()
        self._server.close()
        for connection in list(self.connections):
            connection.abort()
        await self._server.wait_closed()
        self.ledger.close()

    def endpoint(self, bank: str) -> str:
        """Where payments to `bank` are posted."""
        return f"http://{self._host}:{self.port}/banks/{bank}/payments"

    def summary(self) -> Summary:
        """What every bank has received so far."""
        return Summary(banks=self.ledger.totals(), worst_stall_ms=round(self._worst_stall_s * 1000, 3))

    def entries(self) -> list[Entry]:
        """Every line of the ledger so far, in the order of arrival."""
        return self.ledger.entries()

    def _watch(self, due: float | None) -> None:
        loop = asyncio.get_running_loop()
        now = time.monotonic()
        if due is not None:
            self._worst_stall_s = max(self._worst_stall_s, now - due)
        self._stall = loop.call_later(_STALL_EVERY_S, self._watch, now + _STALL_EVERY_S)


class _Connection(asyncio.Protocol):
    """HTTP/1.1 as far as a sender of bodies with a length needs it, pipelining included."""

    def __init__(self, banks: Banks) -> None:
        self._banks = banks
        self._data = b""
        self._waiting = False
        self._timer: asyncio.TimerHandle | None = None
        self._transport: asyncio.Transport | None = None
        self._loop = asyncio.get_running_loop()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is one in deed, not in name
        self._banks.connections.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._banks.connections.discard(self)
        if self._timer is not None:
            self._timer.cancel()

    def abort(self) -> None:
        """End the connection with a reset, whatever is still unsent."""
        if self._transport is not None:
            sock = self._transport.get_extra_info("socket")
            if sock is not None:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        arrived_us = time.monotonic_ns() // 1000
        self._data = self._data + data if self._data else data
        self._next(arrived_us)

    def _next(self, arrived_us: int) -> None:
        while not self._waiting and self._transport is not None and not self._transport.is_closing():
            end = self._data.find(b"\r\n\r\n")
            if end < 0:
                return
            lines = self._data[:end].decode("latin-1").split("\r\n")
            method, path, _ = (lines[0] + "  ").split(" ", 2)
            fields = [line.partition(":") for line in lines[1:]]
            headers = {name.lower(): value.strip() for name, _, value in fields}
            length = int(headers.get("content-length", "0"))
            if len(self._data) < end + 4 + length:
                return
            body = self._data[end + 4 : end + 4 + length]
            self._data = self._data[end + 4 + length :]
            self._request(method, path, headers, body, arrived_us)

    def _request(self, method: str, path: str, headers: dict[str, str], body: bytes, arrived_us: int) -> None:
        parts = path.partition("?")[0].split("/")
        if method == "GET" and path == "/_ledger":
            self._answer(200, msgspec.json.encode(self._banks.summary()))
        elif method == "POST" and len(parts) == 4 and parts[1] == "banks" and parts[3] == "payments":
            self._payment(parts[2], headers, body, arrived_us)
        else:
            self._answer(404, b'{"error": {"code": "NOT_FOUND"}}')

    def _payment(self, bank: str, headers: dict[str, str], body: bytes, arrived_us: int) -> None:
        books = self._banks.ledger.books(bank)
        behaviour = books.behaviour
        books.arrive(arrived_us)
        key = headers.get("idempotency-key", "")
        order = _order(body)
        signed = _signed(behaviour, headers, body, key)
        status, answer = _decide(books, key, order, arrived_us, signed=signed)
        accepted = status == 200 and answer.startswith(b'{"success": true')
        first_time = accepted and key not in books.accepted
        self._banks.ledger.write(
            Entry(
                bank=bank,
                id=key,
                attempt=headers.get("madeira-attempt", ""),
                at_us=time.time_ns() // 1000,
                arrived_us=arrived_us,
                sha256=sha256(body).hexdigest(),
                status=0 if behaviour.hostile else status,
                accepted=accepted,
                signed=signed,
                amount_minor=_minor(order),
            )
        )
        if behaviour.hostile:
            self._misbehave(behaviour.hostile)
        elif behaviour.reset_once and first_time and not books.reset_done:
            books.reset_done = True
            self.abort()
        elif behaviour.slow_ms:
            self._waiting = True
            self._later(
                behaviour.slow_ms / 1000, lambda: self._answer_late(status, answer, behaviour.headers)
            )
        else:
            self._answer(status, answer, behaviour.headers)

    def _answer_late(self, status: int, body: bytes, more: tuple[tuple[str, str], ...]) -> None:
        self._waiting = False
        self._answer(status, body, more)
        self._next(time.monotonic_ns() // 1000)

    def _answer(self, status: int, body: bytes, more: tuple[tuple[str, str], ...] = ()) -> None:
        extra = "".join(f"{name}: {value}\r\n" for name, value in more)
        head = f"HTTP/1.1 {status} Bank\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n"
        self._write(f"{head}{extra}\r\n".encode("latin-1") + body)

    def _write(self, data: bytes) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    def _later(self, seconds: float, what: Callable[[], None]) -> None:
        self._timer = self._loop.call_later(seconds, what)

    def _misbehave(self, how: Hostile) -> None:
        ok = b"HTTP/1.1 200 OK\r\n"
        match how:
            case "never":
                self._waiting = True
            case "drip":
                self._waiting = True
                self._write(ok + b"Content-Length: 100000\r\n\r\n")
                self._drip()
            case "huge":
                self._write(ok + b"Content-Length: 2147483648\r\n\r\n" + b"x" * 4_000_000)
            case "gzip_bomb":
                self._write(
                    ok + b"Content-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(_bomb()) + _bomb()
                )
            case "short_length":  # says more than it sends
                self._write(ok + b'Content-Length: 500\r\n\r\n{"success": true}')
                self._end()
            case "long_length":  # sends more than it says
                self._write(ok + b'Content-Length: 17\r\n\r\n{"success": true}HTTP/1.1 400 Bad\r\n\r\n')
            case "html":
                self._write(ok + b"Content-Type: text/html\r\nContent-Length: 14\r\n\r\n<h1>Hello</h1>")
            case "redirect":
                self._write(b"HTTP/1.1 307 Go\r\nLocation: /banks/ELSEWHERE/payments\r\n")
                self._write(b"Content-Length: 0\r\n\r\n")
            case "garbage":
                self._write(b"\x16\x03\x01 no http at all\r\n\r\n")
            case "interim_flood":
                self._write(b"HTTP/1.1 100 Continue\r\n\r\n" * 5000)
            case "header_flood":
                self._write(ok + b"X-Flood: 1\r\n" * 100_000)
            case "early_bytes":  # a good answer, and then one that nobody asked for
                self._answer(200, b'{"success": true}')
                self._later(0.02, lambda: self._answer(400, b'{"code": "STALE"}'))
            case "hang_up":
                self._end()
            case "":
                pass

    def _drip(self) -> None:
        self._write(b"x")
        self._later(0.02, self._drip)

    def _end(self) -> None:
        if self._transport is not None:
            self._transport.close()


@cache
def _bomb() -> bytes:
    """About 20 KB of gzip that unpack to 20 MB."""
    return gzip.compress(bytes(20_000_000), mtime=0)


def _order(body: bytes) -> _Order:
    try:
        return msgspec.json.decode(body, type=_Order)
    except (msgspec.DecodeError, RecursionError):
        return _Order()


def _minor(order: _Order) -> int | None:
    if order.amount is None or not order.amount.is_finite():
        return None
    minor = order.amount.scaleb(2)
    return int(minor) if minor == minor.to_integral_value() else None


def _signed(behaviour: Bank, headers: dict[str, str], body: bytes, key: str) -> bool | None:
    if not behaviour.secret:
        return None
    standard = behaviour.scheme is SignatureScheme.STANDARD_WEBHOOKS
    prefix = "webhook" if standard else "madeira"
    return verify(
        behaviour.scheme,
        (behaviour.secret.encode(),),
        body,
        timestamp=headers.get(f"{prefix}-timestamp", ""),
        signature=headers.get(f"{prefix}-signature", ""),
        message_id=headers.get("webhook-id", key),
        now_s=int(time.time()),
    )


def _decide(
    books: Books, key: str, order: _Order, arrived_us: int, *, signed: bool | None
) -> tuple[int, bytes]:
    """What the bank says, before any rudeness. An id that it has accepted is accepted again, whatever else
    holds."""
    behaviour = books.behaviour
    checksum = crc32(key.encode())
    if behaviour.hostile:
        return 200, b""
    if behaviour.status:
        return behaviour.status, behaviour.answer.encode()
    if signed is False:
        return 401, b'{"error": {"code": "SIGNATURE"}}'
    if key in books.accepted:
        return 200, b'{"success": true, "repeated": true}'
    since_s = (arrived_us - (books.first_us or arrived_us)) / SECOND_US
    if books.totals.requests < behaviour.unavailable_requests or since_s < behaviour.unavailable_s:
        return 503, b'{"error": {"code": "UNAVAILABLE"}}'
    if behaviour.refuse_accounts and str(order.account_to).endswith(behaviour.refuse_accounts):
        return 400, b'{"error": {"code": "ACCOUNT_CLOSED"}}'
    if behaviour.refuse_every and checksum % behaviour.refuse_every == 0:
        return 200, b'{"success": false, "code": "REFUSED"}'
    if behaviour.soft_fail_every and checksum % behaviour.soft_fail_every == 0 and not books.tries[key]:
        return 200, b'{"success": false, "code": "TRY_LATER"}'
    return 200, b'{"success": true}'


async def _serve(arguments: argparse.Namespace) -> None:
    script: dict[str, Bank] = {}
    if arguments.script is not None:
        script = msgspec.json.decode(arguments.script.read_bytes(), type=dict[str, Bank])
    leave = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, leave.set)
    async with Banks(script, ledger=arguments.ledger, host=arguments.host, port=arguments.port) as banks:
        # Renamed into place, so that whoever waits for the file never reads half a number.
        fresh = arguments.port_file.with_suffix(".new")
        fresh.write_text(f"{banks.port}\n", encoding="ascii")
        fresh.replace(arguments.port_file)
        await leave.wait()


def main() -> None:
    """Serve until SIGTERM or SIGINT."""
    parser = argparse.ArgumentParser(prog="python -m madeira.banks", description="The receiving banks.")
    parser.add_argument("--port-file", type=Path, required=True, help="written when the server is ready")
    parser.add_argument("--ledger", type=Path, required=True, help="append-only, one JSON object a line")
    parser.add_argument("--script", type=Path, help="how each bank behaves, JSON")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0, help="default: any free one")
    uvloop.run(_serve(parser.parse_args()))


if __name__ == "__main__":
    main()
