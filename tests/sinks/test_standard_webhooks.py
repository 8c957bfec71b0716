"""What a partner with `signature = "standard-webhooks"` receives, checked by the scheme's own library."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from time import time

import pytest
from aiohttp import web
from msgspec import structs
from standardwebhooks import Webhook as Library
from standardwebhooks import WebhookVerificationError

from sinks.answer import Answer
from sinks.partner import Partner, SignatureScheme
from sinks.webhook import Webhook
from tests.partner import BODY, attempt, envelope, partner

OLD, NEW = (f"whsec_{b64encode(bytes([n]) * 32).decode()}" for n in (1, 2))


@dataclass
class Received:
    """The requests as they came, and where to send them."""

    endpoint: str
    requests: list[tuple[dict[str, str], bytes]]

    def standard(self, *secrets: str, **changes: object) -> Partner:
        """The partner behind the endpoint, signed for by these secrets."""
        keys = tuple(secret.encode() for secret in secrets)
        return partner(
            self.endpoint, signature=SignatureScheme.STANDARD_WEBHOOKS, signing_keys=keys, **changes
        )


@pytest.fixture
async def received() -> AsyncIterator[Received]:
    """A real server that keeps what it gets and says 200."""
    async with _server() as kept:
        yield kept


@asynccontextmanager
async def _server() -> AsyncIterator[Received]:
    requests: list[tuple[dict[str, str], bytes]] = []

    async def take(request: web.Request) -> web.Response:
        requests.append((dict(request.headers), await request.read()))
        return web.Response()

    runner = web.ServerRunner(web.Server(take))  # type: ignore[arg-type]
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        port = runner.addresses[0][1]
        yield Received(f"http://127.0.0.1:{port}/in", requests)
    finally:
        await runner.cleanup()


@pytest.fixture
async def webhook() -> AsyncIterator[Webhook]:
    """A sender, closed at the end."""
    async with Webhook.open(connections=4) as opened:
        yield opened


def _accepts(secret: str, request: tuple[dict[str, str], bytes]) -> bool:
    headers, body = request
    try:
        Library(secret).verify(body, headers, json_parse=False)
    except WebhookVerificationError:
        return False
    return True


async def test_the_library_takes_the_first_send(webhook: Webhook, received: Received) -> None:
    """The library accepts the request, gives the payload, and refuses another secret and another byte."""
    assert isinstance(await webhook.send(attempt(received.standard(OLD))), Answer)
    [(headers, body)] = received.requests
    assert body == BODY
    assert Library(OLD).verify(body, headers) == json.loads(BODY)
    assert not _accepts(NEW, (headers, body))
    assert not _accepts(OLD, (headers, body + b" "))


async def test_a_retry_has_its_own_time_and_the_same_id(webhook: Webhook, received: Received) -> None:
    """Each attempt is signed anew with its own second, under one id; the first one's signature would be stale."""
    to, now = received.standard(OLD), int(time())
    stale = structs.replace(attempt(to), timestamp_s=now - 600)
    for send in (stale, structs.replace(attempt(to, number=2), timestamp_s=now)):
        assert isinstance(await webhook.send(send), Answer)
    first, second = received.requests
    assert first[0]["webhook-id"] == second[0]["webhook-id"]
    assert int(second[0]["webhook-timestamp"]) - int(first[0]["webhook-timestamp"]) == 600
    assert (_accepts(OLD, first), _accepts(OLD, second)) == (False, True)
    mixed = {**second[0], "webhook-signature": first[0]["webhook-signature"]}
    assert not _accepts(OLD, (mixed, second[1]))


async def test_both_secrets_fit_while_one_is_replaced(webhook: Webhook, received: Received) -> None:
    """With old and new secret configured a receiver that holds either accepts; afterwards only the new one."""
    assert isinstance(await webhook.send(attempt(received.standard(NEW, OLD))), Answer)
    assert isinstance(await webhook.send(attempt(received.standard(NEW), number=2)), Answer)
    during, after = received.requests
    assert (_accepts(OLD, during), _accepts(NEW, during)) == (True, True)
    assert (_accepts(OLD, after), _accepts(NEW, after)) == (False, True)


async def test_an_id_with_full_stops(webhook: Webhook, received: Received) -> None:
    """An event id may hold full stops, the separator of what is signed; the library still accepts it."""
    event = envelope("a.1700000000.b")
    assert isinstance(await webhook.send(attempt(received.standard(OLD), event=event)), Answer)
    [request] = received.requests
    assert "." not in request[0]["webhook-id"]
    assert _accepts(OLD, request)
