"""Attempts over TLS, with authorities made for the test: who is trusted, and what leaves when nobody is."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime, timedelta
from typing import Final

import pytest
import trustme

from sinks.answer import Answer, Failed, SlotMissed, Stage
from sinks.webhook import Webhook
from tests.partner import BODY, attempt, partner

_OK: Final = b"HTTP/1.1 200 OK\r\nContent-Length: 17\r\n\r\n" + b'{"success": true}'
_STALE: Final = b"HTTP/1.1 400 No\r\nContent-Length: 0\r\n\r\n"
_WEEK: Final = timedelta(days=7)


class _Bank:
    """A bank behind TLS that counts its connections and keeps the bodies that it received."""

    def __init__(self, afterwards: bytes) -> None:
        self.afterwards = afterwards
        self.connections = 0
        self.bodies: list[bytes] = []
        self.spoken = asyncio.Event()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer each request; the first answer is followed by words that nobody asked for, if there are any."""
        self.connections += 1
        try:
            while True:
                await reader.readuntil(b"\r\n\r\n")
                self.bodies.append(await reader.readexactly(len(BODY)))
                writer.write(_OK)
                if self.afterwards and len(self.bodies) == 1:
                    await asyncio.sleep(0.02)  # the answer has been read, the connection is kept
                    writer.write(self.afterwards)
                    self.spoken.set()
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()


@asynccontextmanager
async def _bank(certificate: trustme.LeafCert, afterwards: bytes = b"") -> AsyncIterator[tuple[_Bank, int]]:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    certificate.configure_cert(context)
    bank = _Bank(afterwards)
    server = await asyncio.start_server(bank.serve, "127.0.0.1", 0, ssl=context)
    async with server:
        yield bank, server.sockets[0].getsockname()[1]


@asynccontextmanager
async def _trusting(authority: trustme.CA) -> AsyncIterator[Webhook]:
    context = ssl.create_default_context()
    authority.configure_trust(context)
    async with Webhook.open(connections=4, tls=context) as webhook:
        yield webhook


async def test_a_trusted_bank_is_sent_to_over_one_connection() -> None:
    """The bytes arrive over TLS as they were, and session tickets are no reason to connect anew for each of them."""
    authority = trustme.CA()
    async with _bank(authority.issue_cert("127.0.0.1")) as (bank, port), _trusting(authority) as webhook:
        to = partner(f"https://127.0.0.1:{port}/")
        results = [await webhook.send(attempt(to, number=number, wait_s=0.02)) for number in (1, 2, 3)]
    assert [(r.status, r.body) for r in results if isinstance(r, Answer)] == [(200, b'{"success": true}')] * 3
    assert bank.bodies == [BODY] * 3
    assert bank.connections == 1


async def test_the_name_is_checked_and_resolved() -> None:
    """A bank is reached by its name when the certificate is for that name."""
    authority = trustme.CA()
    async with _bank(authority.issue_cert("localhost")) as (bank, port), _trusting(authority) as webhook:
        by_name = await webhook.send(attempt(partner(f"https://localhost:{port}/", name="AB")))
        by_address = await webhook.send(attempt(partner(f"https://127.0.0.1:{port}/", name="CD")))
    assert isinstance(by_name, Answer)
    assert isinstance(by_address, Failed)
    assert len(bank.bodies) == 1


def _of_nobody(_: trustme.CA) -> trustme.LeafCert:
    return trustme.CA().issue_cert("127.0.0.1")


def _of_another_host(authority: trustme.CA) -> trustme.LeafCert:
    return authority.issue_cert("other.example")


def _of_last_week(authority: trustme.CA) -> trustme.LeafCert:
    return authority.issue_cert("127.0.0.1", not_after=datetime.now(UTC).replace(tzinfo=None) - _WEEK)


@pytest.mark.parametrize("issue", [_of_nobody, _of_another_host, _of_last_week])
async def test_a_bank_that_cannot_prove_itself_receives_nothing(
    issue: Callable[[trustme.CA], trustme.LeafCert],
) -> None:
    """An unknown authority, another host's certificate, an expired one: no byte of the payment leaves."""
    authority = trustme.CA()
    async with _bank(issue(authority)) as (bank, port), _trusting(authority) as webhook:
        result = await webhook.send(attempt(partner(f"https://127.0.0.1:{port}/")))
        assert webhook.free == 4
    assert isinstance(result, Failed)
    assert (result.stage, result.may_have_arrived, result.sent_at) == (Stage.TLS, False, None)
    assert result.reason == "the certificate is not valid"
    assert bank.bodies == []


async def test_words_out_of_turn_are_not_the_next_answer() -> None:
    """Inside TLS, too, what a bank says on a kept connection is not taken for the answer to the next payment."""
    authority = trustme.CA()
    certificate = authority.issue_cert("127.0.0.1")
    async with _bank(certificate, _STALE) as (bank, port), _trusting(authority) as webhook:
        to = partner(f"https://127.0.0.1:{port}/")
        first = await webhook.send(attempt(to))
        # The words reach the kernel in this turn of the loop; the next send looks before the loop has read them.
        await bank.spoken.wait()
        second = await webhook.send(attempt(to))
    assert isinstance(first, Answer)
    assert isinstance(second, Answer)
    assert (first.status, second.status) == (200, 200)
    assert bank.connections == 2


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(ConnectionError):
        while data := await reader.read(65536):
            writer.write(data)
    writer.close()


async def test_a_slow_handshake_is_told_from_a_busy_process() -> None:
    """A slot that goes by while connecting is missed for that; the connection then carries the next attempt."""
    authority = trustme.CA()
    near = asyncio.Event()
    async with _bank(authority.issue_cert("127.0.0.1")) as (bank, port), _trusting(authority) as webhook:

        async def far(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await near.wait()
            there, back = await asyncio.open_connection("127.0.0.1", port)
            await asyncio.gather(_pass_on(reader, back), _pass_on(there, writer))

        async with await asyncio.start_server(far, "127.0.0.1", 0) as server:
            to = partner(
                f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}/", lateness=timedelta(milliseconds=8)
            )
            asyncio.get_running_loop().call_later(0.1, near.set)
            missed = await webhook.send(attempt(to))
            late = await webhook.send(attempt(to, wait_s=-1))
            sent = await webhook.send(attempt(partner(to.endpoint)))
    assert isinstance(missed, SlotMissed)
    assert isinstance(late, SlotMissed)
    assert (missed.connecting, late.connecting) == (True, False)
    assert isinstance(sent, Answer)
    assert (bank.connections, bank.bodies) == (1, [BODY])
