"""One attempt over real HTTP: what leaves, when, how often, and what comes of whatever a partner does."""

from __future__ import annotations

import asyncio
import re
import socket
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from datetime import timedelta
from hashlib import sha256
from pathlib import Path
from time import monotonic

import pytest

from madeira.bank_ledger import Bank, Hostile
from sinks.address import check_endpoint
from sinks.answer import Answer, Failed, SlotMissed, Stage
from sinks.classify import classify
from sinks.partner import Partner, SignatureScheme
from sinks.webhook import BODY_LIMIT, Webhook, check_headers
from streams.delivery import Dead, Retry
from tests.partner import BODY, TRACE_ID, attempt, banks, envelope, partner, silent

SHORT = timedelta(milliseconds=150)
LATE = timedelta(milliseconds=8)


@pytest.fixture
async def webhook() -> AsyncIterator[Webhook]:
    """A sender with few connections, closed at the end."""
    async with Webhook.open(connections=8) as opened:
        yield opened


async def _until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while not true():  # noqa: ASYNC110 - a turn of the loop, not a time
            await asyncio.sleep(0)


@pytest.mark.parametrize("scheme", list(SignatureScheme))
async def test_signed_bytes_arrive_as_they_were(
    webhook: Webhook, tmp_path: Path, scheme: SignatureScheme
) -> None:
    """The bank receives the very bytes of the envelope, with a signature that it can check, and books them."""
    async with banks(tmp_path, AB=Bank(secret="s3", scheme=scheme)) as received:
        to = partner(received.endpoint("AB"), signing_keys=(b"new", b"s3"), signature=scheme)
        result = await webhook.send(attempt(to, number=3))
        (entry,) = received.entries()
    assert isinstance(result, Answer)
    assert (result.status, result.body, result.truncated) == (200, b'{"success": true}', False)
    assert result.sent_at <= result.ended_at
    assert entry.id == "payment-orders:29401:2026-03-02"
    assert (entry.attempt, entry.sha256) == ("3", sha256(BODY).hexdigest())
    assert (entry.signed, entry.accepted, entry.amount_minor) == (True, True, 245_200)


async def test_request_head(webhook: Webhook) -> None:
    """The head says what the design promises, each header once, and nothing that asks for compression or cookies."""
    heads: list[list[str]] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append((await reader.readuntil(b"\r\n\r\n")).decode("ascii").split("\r\n")[:-2])
        await reader.readexactly(len(BODY))
        writer.write(b"HTTP/1.1 200 OK\r\nSet-Cookie: a=b\r\nConnection: close\r\nContent-Length: 0\r\n\r\n")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        to = partner(
            f"http://127.0.0.1:{port}/a%2Fb?x=1", headers=(("X-Api-Key", "k"), ("user-agent", "mine"))
        )
        for number in (1, 2):
            assert isinstance(await webhook.send(attempt(to, number=number)), Answer)
    assert heads[0][0] == "POST /a%2Fb?x=1 HTTP/1.1"
    first, second = (dict(line.split(": ", 1) for line in head[1:]) for head in heads)
    assert len(first) == len(heads[0]) - 1
    parents = [head.pop("traceparent") for head in (first, second)]
    assert first == {
        "Host": f"127.0.0.1:{port}",
        "Accept": "*/*",
        "X-Api-Key": "k",
        "user-agent": "mine",
        "Content-Type": "application/json",
        "Content-Length": str(len(BODY)),
        "Idempotency-Key": "payment-orders:29401:2026-03-02",
        "X-Trace-Id": TRACE_ID,
        "Madeira-Attempt": "1",
    }
    assert second == {**first, "Madeira-Attempt": "2"}
    assert all(re.fullmatch(rf"00-{TRACE_ID}-[0-9a-f]{{16}}-01", parent) for parent in parents)
    assert parents[0] != parents[1]


async def test_never_before_the_slot(webhook: Webhook, tmp_path: Path) -> None:
    """However close the slots are, none of the requests is written or received before its own."""
    async with banks(tmp_path) as received:
        to = partner(received.endpoint("AB"))
        sends = [attempt(to, event=envelope(f"{n}"), wait_s=0.02 + n * 0.0007) for n in range(8)]
        results = await asyncio.gather(*[webhook.send(send) for send in sends])
        arrived = {entry.id: entry.arrived_us for entry in received.entries()}
    for send, result in zip(sends, results, strict=True):
        assert isinstance(result, Answer)
        assert result.sent_at >= send.start
        assert arrived[send.envelope.delivery] >= send.start * 1_000_000 - 1


async def test_missed_slot_sends_nothing_and_warms_the_connection(webhook: Webhook, tmp_path: Path) -> None:
    """Who is too late gives the slot up; the connection made for it carries the next attempt."""
    async with banks(tmp_path) as received:
        to = partner(received.endpoint("AB"), lateness=LATE)
        missed = await webhook.send(attempt(to, wait_s=-1))
        assert isinstance(missed, SlotMissed)
        assert missed.late_by >= timedelta(seconds=1)
        await _until(lambda: len(received.connections) == 1)
        before = set(received.connections)
        assert received.entries() == []
        to = partner(received.endpoint("AB"))
        assert isinstance(await webhook.send(attempt(to)), Answer)
        assert received.connections == before
        assert webhook.free == 8


HOSTILE: list[tuple[Hostile, type[Answer | Failed], Stage | int]] = [
    ("never", Failed, Stage.TIMEOUT),
    ("drip", Failed, Stage.TIMEOUT),
    ("interim_flood", Failed, Stage.GARBLED),
    ("header_flood", Failed, Stage.GARBLED),
    ("garbage", Failed, Stage.GARBLED),
    ("short_length", Failed, Stage.RESET),
    ("hang_up", Failed, Stage.RESET),
    ("long_length", Answer, 200),
    ("huge", Answer, 200),
    ("gzip_bomb", Answer, 200),
    ("html", Answer, 200),
    ("redirect", Answer, 307),
]


@pytest.mark.parametrize(("how", "kind", "expected"), HOSTILE)
async def test_hostile_partner(
    webhook: Webhook, tmp_path: Path, how: Hostile, kind: type[Answer | Failed], expected: Stage | int
) -> None:
    """Whatever a partner answers is a value within its timeout and 64 KiB; one request left, and may have arrived."""
    async with banks(tmp_path, AB=Bank(hostile=how)) as received:
        # A flood takes a busy machine longer to read than a silence takes to be one.
        to = partner(received.endpoint("AB"), timeout=SHORT if expected is Stage.TIMEOUT else 10 * SHORT)
        begun = monotonic()
        result = await webhook.send(attempt(to))
        assert monotonic() - begun < 5
        assert isinstance(result, kind)
        if isinstance(result, Failed):
            assert (result.stage, result.may_have_arrived) == (expected, True)
            assert result.sent_at is not None
        else:
            assert isinstance(result, Answer)
            assert result.status == expected
            assert len(result.body) <= BODY_LIMIT
            assert result.truncated == (how == "huge")
        assert webhook.free == 8
        # The next attempt of another partner on the same server is not touched by what is left on the wire.
        other = await webhook.send(attempt(partner(received.endpoint("CD"))))
        assert isinstance(other, Answer)
        assert other.body == b'{"success": true}'
        assert [entry.bank for entry in received.entries()] == ["AB", "CD"]


async def test_unasked_bytes_are_not_the_next_answer(webhook: Webhook, tmp_path: Path) -> None:
    """A kept connection on which the partner spoke out of turn is thrown away, not read as the next answer."""
    async with banks(tmp_path, AB=Bank(hostile="early_bytes")) as received:
        to = partner(received.endpoint("AB"))
        first = await webhook.send(attempt(to))
        used = set(received.connections)
        second = await webhook.send(attempt(to, wait_s=0.1))
        assert isinstance(first, Answer)
        assert isinstance(second, Answer)
        assert (first.status, second.status) == (200, 200)
        await _until(lambda: not used & received.connections)


async def test_closed_connection_is_replaced_before_the_write(webhook: Webhook, tmp_path: Path) -> None:
    """A kept connection that ends while the attempt waits for its slot costs nothing: a new one carries it."""
    async with banks(tmp_path) as received:
        to = partner(received.endpoint("AB"))
        assert isinstance(await webhook.send(attempt(to)), Answer)
        waiting = asyncio.create_task(webhook.send(attempt(to, wait_s=0.1)))
        await asyncio.sleep(0)
        for connection in list(received.connections):
            connection.abort()
        assert isinstance(await waiting, Answer)
        assert len(received.entries()) == 2


async def test_end_is_noticed_before_the_loop_hears_of_it(webhook: Webhook) -> None:
    """A partner that ends each connection after its answer, without saying so, still gets every request at once."""
    received = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal received
        await reader.readuntil(b"\r\n\r\n")
        await reader.readexactly(len(BODY))
        received += 1
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        to = partner(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/")
        first = await webhook.send(attempt(to))
        # Time passes in this process without a turn of its loop, as it does in a busy worker.
        with socket.create_connection(server.sockets[0].getsockname()) as idle:
            idle.settimeout(0.05)
            with pytest.raises(TimeoutError):
                idle.recv(1)
        second = await webhook.send(attempt(to))
    assert isinstance(first, Answer)
    assert isinstance(second, Answer)
    assert received == 2


async def test_server_that_speaks_first(webhook: Webhook) -> None:
    """A server that greets is no HTTP server: its words are no answer, and connecting does not go on for ever."""
    connected = 0

    async def greet(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connected
        connected += 1
        writer.write(b"220 mail.example ESMTP\r\n")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(greet, "127.0.0.1", 0)
    async with server:
        to = partner(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/")
        result = await webhook.send(attempt(to, wait_s=0.05))
        assert isinstance(result, Failed)
        assert result.stage in {Stage.CONNECT, Stage.GARBLED, Stage.RESET}
        assert 1 <= connected <= 3


async def test_reset_after_booking_is_never_repeated_by_itself(webhook: Webhook, tmp_path: Path) -> None:
    """A reset after the request left says that it may have arrived; only the next attempt asks again, same id."""
    async with banks(tmp_path, AB=Bank(reset_once=True)) as received:
        to = partner(received.endpoint("AB"))
        first = await webhook.send(attempt(to))
        assert isinstance(first, Failed)
        assert (first.stage, first.may_have_arrived) == (Stage.RESET, True)
        assert len(received.entries()) == 1
        second = await webhook.send(attempt(to, number=2))
        assert isinstance(second, Answer)
        totals = received.summary().banks["AB"]
    assert (totals.requests, totals.accepted, totals.accepted_minor) == (2, 1, 245_200)
    assert totals.duplicates == ["payment-orders:29401:2026-03-02"]


async def test_connection_refused(webhook: Webhook) -> None:
    """A port where nobody listens: nothing left, so nothing may have arrived."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        result = await webhook.send(attempt(partner(f"http://127.0.0.1:{free.getsockname()[1]}/")))
    assert isinstance(result, Failed)
    assert (result.stage, result.may_have_arrived, result.sent_at) == (Stage.CONNECT, False, None)
    assert result.reason == "no connection: connection refused"


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "[::ffff:127.0.0.1]"])
async def test_private_address_is_refused_at_connect(webhook: Webhook, tmp_path: Path, host: str) -> None:
    """Without `allow_private` neither a literal nor a name reaches this machine; no connection is even begun."""
    async with banks(tmp_path) as received:
        to = partner(f"http://{host}:{received.port}/banks/AB/payments", allow_private=False)
        result = await webhook.send(attempt(to))
        assert isinstance(result, Failed)
        assert (result.stage, result.may_have_arrived) == (Stage.ADDRESS, False)
        assert not received.connections


async def test_a_warm_connection_is_no_way_round_the_guard(webhook: Webhook, tmp_path: Path) -> None:
    """A connection that one partner may have is not lent to a partner that may not."""
    async with banks(tmp_path) as received:
        to = partner(received.endpoint("AB"))
        assert isinstance(await webhook.send(attempt(to)), Answer)
        result = await webhook.send(attempt(partner(received.endpoint("AB"), allow_private=False)))
        assert isinstance(result, Failed)
        assert result.stage is Stage.ADDRESS


async def test_no_tls_where_tls_is_asked_for(webhook: Webhook, tmp_path: Path) -> None:
    """A server that speaks plain HTTP on an https URL: nothing left."""
    async with banks(tmp_path) as received:
        result = await webhook.send(attempt(partner(f"https://127.0.0.1:{received.port}/", timeout=SHORT)))
    assert isinstance(result, Failed)
    assert result.stage in {Stage.TLS, Stage.CONNECT, Stage.TIMEOUT}
    assert not result.may_have_arrived


async def test_timeout_holds_for_connecting_too(webhook: Webhook) -> None:
    """A TLS handshake that is never answered ends with the partner's timeout, and nothing may have arrived."""
    async with silent() as port:
        result = await webhook.send(attempt(partner(f"https://127.0.0.1:{port}/", timeout=SHORT)))
    assert isinstance(result, Failed)
    assert (result.stage, result.may_have_arrived, result.sent_at) == (Stage.TIMEOUT, False, None)


async def test_cancelled_send_leaves_nothing_behind(webhook: Webhook, tmp_path: Path) -> None:
    """Cancellation passes through; the connection is closed, and its place is free again."""
    async with banks(tmp_path, AB=Bank(hostile="never")) as received:
        sending = asyncio.create_task(webhook.send(attempt(partner(received.endpoint("AB")))))
        await _until(lambda: len(received.entries()) == 1)
        assert webhook.free == 7
        sending.cancel()
        with pytest.raises(asyncio.CancelledError):
            await sending
        assert webhook.free == 8
        await _until(lambda: not received.connections)


async def test_no_free_connection_gives_the_slot_up(tmp_path: Path) -> None:
    """Who finds every connection taken does not queue past its slot: it says so at once."""
    async with banks(tmp_path, AB=Bank(hostile="never")) as received, Webhook.open(connections=1) as narrow:
        held = asyncio.create_task(narrow.send(attempt(partner(received.endpoint("AB"), timeout=SHORT))))
        await _until(lambda: narrow.free == 0)
        result = await narrow.send(attempt(partner(received.endpoint("CD"))))
        assert result == SlotMissed(late_by=timedelta(0), reason="no free connection")
        assert isinstance(await held, Failed)
        assert narrow.free == 1


@pytest.mark.parametrize(
    "changes",
    [{"trace_id": "x\r\nX-Evil: 1"}, {"content_type": "a\nb"}, {"event_id": "é"}, {"target_uri": "ftp://x/"}],
)
async def test_what_http_does_not_allow_is_not_sent(
    webhook: Webhook, tmp_path: Path, changes: dict[str, object]
) -> None:
    """A field that would break out of its header, or no URL at all, fails before anything is connected."""
    async with banks(tmp_path) as received:
        event = envelope(**{"event_id": "1", **changes})
        result = await webhook.send(attempt(partner(received.endpoint("AB")), event=event))
        assert isinstance(result, Failed)
        assert (result.stage, result.may_have_arrived) == (Stage.REQUEST, False)
        assert not received.connections


async def test_target_uri_goes_before_the_endpoint(webhook: Webhook, tmp_path: Path) -> None:
    """An envelope that names its own target is sent there."""
    async with banks(tmp_path) as received:
        event = envelope(target_uri=received.endpoint("CD"))
        assert isinstance(await webhook.send(attempt(partner(received.endpoint("AB")), event=event)), Answer)
        assert [entry.bank for entry in received.entries()] == ["CD"]


async def test_headers_come_where_they_are_asked_about(webhook: Webhook, tmp_path: Path) -> None:
    """Names in small letters, repeated ones joined; a partner without `retry_when` has none of them kept."""
    headers = (("X-Busy", "1"), ("x-busy", "2"))
    async with banks(tmp_path, AB=Bank(status=400, headers=headers)) as received:
        to = partner(received.endpoint("AB"), retry_when="headers.\"x-busy\" == '1, 2'")
        asked = await webhook.send(attempt(to))
        plain = await webhook.send(attempt(partner(received.endpoint("AB"))))
    assert isinstance(asked, Answer)
    assert dict(asked.headers)["x-busy"] == "1, 2"
    assert isinstance(classify(asked, to, earlier_may_have_arrived=False), Retry)
    assert isinstance(plain, Answer)
    assert plain.headers == ()


async def test_retry_after_is_parsed(webhook: Webhook, tmp_path: Path) -> None:
    """`Retry-After` comes back as a duration."""
    bank = Bank(status=503, headers=(("Retry-After", "120"),))
    async with banks(tmp_path, AB=bank) as received:
        result = await webhook.send(attempt(partner(received.endpoint("AB"))))
    assert isinstance(result, Answer)
    assert (result.status, result.retry_after) == (503, timedelta(minutes=2))


@pytest.mark.parametrize(
    "endpoint", ["", "ab.example/x", "ftp://ab/", "http:///x", "http://u:p@ab/", "http://ab/ä"]
)
def test_endpoint_that_cannot_be_posted_to(endpoint: str) -> None:
    """An endpoint is an absolute, percent-encoded http(s) URL without credentials."""
    with pytest.raises(ValueError):
        check_endpoint(endpoint)


@pytest.mark.parametrize(
    "header", [("Host", "x"), ("a b", "x"), ("X", "a\r\nb"), ("Idempotency-Key", "1"), ("X", "é")]
)
def test_headers_that_a_partner_cannot_have(header: tuple[str, str]) -> None:
    """A partner's own headers can neither break the request nor replace what Madeira promises."""
    with pytest.raises(ValueError):
        check_headers((header,))


async def test_changed_partner_is_used_at_once(webhook: Webhook, tmp_path: Path) -> None:
    """What is prepared per partner follows the partner that is given, not the first one of that name."""
    async with banks(tmp_path, AB=Bank(secret="new")) as received:
        old: Partner = partner(received.endpoint("AB"), signing_keys=(b"old",))
        new = partner(received.endpoint("AB"), signing_keys=(b"new",))
        statuses = [await webhook.send(attempt(to)) for to in (old, new)]
    assert [result.status for result in statuses if isinstance(result, Answer)] == [401, 200]


async def test_what_was_reloaded_holds_from_the_next_send(webhook: Webhook, tmp_path: Path) -> None:
    """A changed endpoint, header, key, timeout or allowed host takes effect on the next send to the partner."""
    async with (
        banks(
            tmp_path, AB=Bank(secret="k"), CD=Bank(secret="k", status=401), EF=Bank(hostile="never")
        ) as received,
    ):
        first = partner(received.endpoint("CD"), signing_keys=(b"k",), timeout=timedelta(minutes=1))
        moved = replace(first, endpoint=received.endpoint("AB"))
        keyed = replace(moved, signing_keys=(b"other",))
        headed = replace(moved, headers=(("Expect-Nothing", "1"),))
        hasty = replace(first, endpoint=received.endpoint("EF"), timeout=SHORT)
        results = [await webhook.send(attempt(to)) for to in (first, moved, keyed, headed, hasty, moved)]
    told = [result.status if isinstance(result, Answer) else result for result in results]
    assert told[:4] == [401, 200, 401, 200]
    assert isinstance(results[4], Failed)
    assert results[4].stage is Stage.TIMEOUT
    assert told[5] == 200


async def test_target_uri_is_asked_again_at_the_send(webhook: Webhook, tmp_path: Path) -> None:
    """An address that the partner no longer has is not sent to: nothing left, dead, and the reason says why."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    async with banks(tmp_path) as ours, banks(elsewhere) as others:
        event = envelope(target_uri=others.endpoint("AB"))
        host = others.endpoint("AB").split("/")[2]
        to = partner(ours.endpoint("AB"), allowed_hosts=(host,))
        assert isinstance(await webhook.send(attempt(to, event=event)), Answer)
        refused = await webhook.send(attempt(replace(to, allowed_hosts=()), event=event, number=2))
        assert isinstance(refused, Failed)
        assert (refused.stage, refused.may_have_arrived, refused.sent_at) == (Stage.REQUEST, False, None)
        outcome = classify(refused, to, earlier_may_have_arrived=False)
        assert isinstance(outcome, Dead)
        assert "allowed_hosts" in outcome.reason
        assert len(others.entries()) == 1
        assert ours.entries() == []


async def test_target_uri_of_the_own_host(webhook: Webhook, tmp_path: Path) -> None:
    """Another path of the endpoint's own host needs no word of the partner, and is where the request goes."""
    async with banks(tmp_path) as received:
        to = partner(received.endpoint("AB"))
        event = envelope(target_uri=received.endpoint("CD"))
        assert isinstance(await webhook.send(attempt(to, event=event)), Answer)
        assert [entry.bank for entry in received.entries()] == ["CD"]
