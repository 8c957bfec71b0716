"""A partner that says too much, or listens too little, costs the others no more than an ordinary one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from time import thread_time
from typing import Final

import pytest

from sinks.answer import Answer, Failed, Stage
from sinks.webhook import BODY_LIMIT, Webhook
from tests.partner import BODY, attempt, envelope, partner

_OK: Final = b"HTTP/1.1 200 OK\r\n"
_EMPTY: Final = _OK + b"Content-Length: 0\r\n\r\n"
_CHUNKED: Final = _OK + b"Transfer-Encoding: chunked\r\n\r\n"


@asynccontextmanager
async def _says(words: bytes) -> AsyncIterator[str]:
    """A server that says the same to every request; gives its URL."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                await reader.readuntil(b"\r\n\r\n")
                await reader.readexactly(len(BODY))
                writer.write(words)
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.transport.abort()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"


async def _cost(webhook: Webhook, endpoint: str) -> tuple[float, Answer | Failed]:
    """The least processor time of one attempt out of five, and what came of it."""
    costs = []
    for _ in range(5):
        send = attempt(partner(endpoint))
        begun = thread_time()
        result = await webhook.send(send)
        costs.append(thread_time() - begun)
        assert isinstance(result, Answer | Failed)
    return min(costs), result


@pytest.mark.parametrize(
    ("words", "times"),
    [
        (b"HTTP/1.1 100 Continue\r\n\r\n" * 40_000, 8),
        (_EMPTY * 40_000, 8),
        (_CHUNKED + b"1\r\na\r\n" * 170_000, 30),
    ],
    ids=["interim answers", "answers to no request", "chunks of one byte"],
)
async def test_flood_costs_little(words: bytes, times: int) -> None:
    """A megabyte of the smallest things that can be parsed costs a few times what a plain answer of 64 KiB does."""
    plain = _OK + b"Content-Length: %d\r\n\r\n" % BODY_LIMIT + b"x" * BODY_LIMIT
    async with Webhook.open(connections=4) as webhook, _says(plain) as ordinary, _says(words) as flood:
        reference, _ = await _cost(webhook, ordinary)
        cost, _ = await _cost(webhook, flood)
    assert cost < times * reference


async def test_the_first_of_many_answers_counts() -> None:
    """What follows a whole answer does not change it, and the connection carries nothing else."""
    async with Webhook.open(connections=4) as webhook, _says(_EMPTY * 5000) as endpoint:
        for _ in range(3):
            result = await webhook.send(attempt(partner(endpoint)))
            assert isinstance(result, Answer)
            assert (result.status, result.body, result.truncated) == (200, b"", False)


async def test_a_body_of_mostly_something_else_is_cut() -> None:
    """The body is what had come of it, and says that it is not whole."""
    async with Webhook.open(connections=4) as webhook, _says(_CHUNKED + b"1\r\na\r\n" * 50_000) as endpoint:
        result = await webhook.send(attempt(partner(endpoint)))
    assert isinstance(result, Answer)
    assert (result.status, result.truncated) == (200, True)
    assert set(result.body) == {ord("a")}


async def test_long_heads_and_whole_bodies_are_read() -> None:
    """The bound is on what is neither: 12 KiB of head and a body of 64 KiB in chunks of 1 KiB are no flood."""
    head = _OK + (b"X: %s\r\n" % (b"x" * 6000)) * 2 + b"Transfer-Encoding: chunked\r\n\r\n"
    words = head + (b"400\r\n" + b"y" * 1024 + b"\r\n") * 64 + b"0\r\n\r\n"
    async with Webhook.open(connections=4) as webhook, _says(words) as endpoint:
        for _ in range(2):
            result = await webhook.send(attempt(partner(endpoint)))
            assert isinstance(result, Answer)
            assert (result.body, result.truncated) == (b"y" * BODY_LIMIT, False)


async def test_what_was_not_read_in_time_is_not_sent_later() -> None:
    """A partner that does not read until the attempt has ended never receives the rest of it."""
    received = asyncio.get_running_loop().create_future()
    ended = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        await ended.wait()
        writer.transport.resume_reading()  # type: ignore[attr-defined]
        total = 0
        try:
            while piece := await reader.read(1 << 20):
                total += len(piece)
        except ConnectionError:
            pass
        writer.close()
        received.set_result(total)

    body = bytes(32 << 20)
    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server, Webhook.open(connections=4) as webhook:
        to = partner(
            f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/", timeout=timedelta(milliseconds=300)
        )
        result = await webhook.send(attempt(to, event=envelope(payload=body)))
        ended.set()
        total = await asyncio.wait_for(received, 10)
    assert isinstance(result, Failed)
    assert (result.stage, result.may_have_arrived) == (Stage.TIMEOUT, True)
    assert total < len(body)
