"""One POST per attempt: made ready before its slot, written in it, read to the end, and never repeated.

It drives aiohttp's connector and response parser itself, without a `ClientSession`. The session would hide
the moment of the write, may send again on its own when a kept connection turns out dead, and costs more
than half the time of a request. There are no redirects, cookies, proxies or decompression here because
nothing does them.
"""

from __future__ import annotations

import asyncio
import logging
import os
import select
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from hashlib import blake2b
from importlib.metadata import PackageNotFoundError, version
from re import compile as pattern
from select import POLLIN
from ssl import SSLContext, SSLError
from time import monotonic
from typing import TYPE_CHECKING, Final

import msgspec
from aiohttp import (
    ClientConnectorCertificateError,
    ClientConnectorDNSError,
    ClientConnectorError,
    ClientConnectorSSLError,
    ClientError,
    ClientPayloadError,
    ClientRequest,
    ClientTimeout,
)
from aiohttp.http_exceptions import HttpProcessingError

from sinks.address import AddressRefused, check_endpoint, target_refusal
from sinks.answer import Answer, Failed, SlotMissed, Stage, parse_retry_after
from sinks.connector import INTERIM_ANSWERS, Connector, Handler
from sinks.partner import Partner
from sinks.signature import Signer
from streams.envelope import Envelope

if TYPE_CHECKING:
    from aiohttp.connector import Connection
    from aiohttp.streams import StreamReader

Result = Answer | Failed | SlotMissed

BODY_LIMIT: Final = 64 * 1024
"""Bytes of an answer's body that are read; a longer one ends the connection."""

_HEADER_LINES: Final = 100
_ROUTES: Final = 1024
_CONNECTION_TRIES: Final = 3
_TURNS: Final = 4  # of the loop, for what TLS itself has to say
_ENDED: Final[int] = getattr(select, "POLLRDHUP", 0)  # Linux; elsewhere the loop alone has to notice
_UNLIMITED: Final = ClientTimeout(total=None, connect=None, sock_connect=None, sock_read=None)
_TRACE_ID: Final = pattern(r"(?!0{32})[0-9a-f]{32}")
_TOKEN: Final = pattern(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_OURS: Final = frozenset(
    {
        *("host", "connection", "content-length", "transfer-encoding", "expect", "upgrade", "te", "trailer"),
        *("idempotency-key", "x-trace-id", "traceparent", "madeira-attempt"),
        *("madeira-timestamp", "madeira-signature", "webhook-id", "webhook-timestamp", "webhook-signature"),
    }
)

_log = logging.getLogger(__name__)


def _user_agent() -> str:
    try:
        return f"madeira/{version('madeira')}"
    except PackageNotFoundError:  # run from a bare source tree
        return "madeira"


USER_AGENT: Final = _user_agent()


class Send(msgspec.Struct, frozen=True):
    """One attempt. `start` is its slot in seconds of `time.monotonic()` (uvloop's own clock counts whole
    milliseconds).

    `attempt` counts from 1; `timestamp_s` is the unix second that is signed, from Redis `TIME`.
    `late` is told, at once, by how many seconds more than the partner's lateness the request left after its slot.
    """

    partner: Partner
    envelope: Envelope
    attempt: int
    start: float
    timestamp_s: int
    late: Callable[[float], None] | None = None


def check_headers(headers: tuple[tuple[str, str], ...]) -> None:
    """Raises `ValueError` naming the header that HTTP does not allow, or that Madeira sets itself."""
    for name, value in headers:
        if not _TOKEN.fullmatch(name):
            raise ValueError(f"{name!r} is not a header name")
        if name.lower() in _OURS:
            raise ValueError(f"{name} is set by Madeira")
        if not (value.isascii() and value.isprintable()):
            raise ValueError(f"the value of {name} must be printable ASCII")


class _Route:
    """What is the same for every request to one URL of one partner."""

    __slots__ = (
        "allow_private",
        "content_type",
        "head",
        "lateness_s",
        "partner",
        "request",
        "signer",
        "timeout_s",
        "tls",
    )

    def __init__(self, partner: Partner, uri: str) -> None:
        url = check_endpoint(uri)
        check_headers(partner.headers)
        own = {name.lower() for name, _ in partner.headers}
        defaults = (("User-Agent", USER_AGENT), ("Accept", "*/*"))
        lines = [f"POST {url.raw_path_qs} HTTP/1.1", f"Host: {url.host_port_subcomponent}"]
        lines += [f"{name}: {value}" for name, value in defaults if name.lower() not in own]
        lines += [f"{name}: {value}" for name, value in partner.headers]
        self.partner = partner
        self.head = "\r\n".join(lines)
        self.content_type = "content-type" not in own
        self.signer = Signer(partner.signature, partner.signing_keys)
        self.allow_private = partner.allow_private
        self.timeout_s = partner.timeout / timedelta(seconds=1)
        self.lateness_s = partner.lateness / timedelta(seconds=1)
        self.tls = url.scheme == "https"
        # Only tells the connector where to go; never sent, so one does for all.
        self.request = ClientRequest("POST", url, loop=asyncio.get_running_loop())

    def render(self, send: Send) -> bytes:
        """The whole request. Raises `ValueError` when a field of the envelope cannot stand in a header."""
        envelope = send.envelope
        delivery, trace_id = envelope.delivery, envelope.trace_id
        content_type = f"\r\nContent-Type: {envelope.content_type}" if self.content_type else ""
        if not f"{delivery}{trace_id}{envelope.content_type}".isprintable():
            raise ValueError("id, trace id and content type must be printable")
        parent = ""
        if _TRACE_ID.fullmatch(trace_id):
            attempt = f"{self.partner.name}/{delivery}/{send.attempt}"
            span = blake2b(attempt.encode(), digest_size=8).hexdigest()
            parent = f"\r\ntraceparent: 00-{trace_id}-{span}-01"
        body = envelope.payload
        signed = self.signer.headers(body, timestamp_s=send.timestamp_s, message_id=delivery)
        signature = "".join([f"\r\n{name}: {value}" for name, value in signed])
        head = (
            f"{self.head}{content_type}\r\nContent-Length: {len(body)}\r\nIdempotency-Key: {delivery}"
            f"\r\nX-Trace-Id: {trace_id}{parent}\r\nMadeira-Attempt: {send.attempt}{signature}\r\n\r\n"
        )
        return head.encode("ascii") + body


def preview(partner: Partner, envelope: Envelope, *, attempt: int) -> bytes:
    """The request as it would be sent now, in a running loop; its signature is of second 0, and proves nothing.

    Raises `ValueError` for an address or a header that cannot be sent.
    """
    route = _Route(partner, envelope.target_uri or partner.endpoint)
    return route.render(Send(partner, envelope, attempt, start=0.0, timestamp_s=0))


class _Trip:
    """How far one send has come; read when it ends early."""

    __slots__ = ("connection", "sent_at", "status", "trace_id")

    def __init__(self, trace_id: str) -> None:
        self.trace_id = trace_id
        self.connection: Connection | None = None
        self.sent_at: float | None = None
        self.status: int | None = None


class Webhook:
    """Sends to every partner of a process over one fixed budget of connections. Use `async with
    Webhook.open()`."""

    def __init__(self, *, connections: int, tls: SSLContext | None) -> None:
        self._connections = connections
        self._busy = 0
        self._poll = select.poll()
        self._routes: dict[tuple[str, str, str], _Route] = {}
        self._guarded, self._open = (
            Connector(tls=tls, allow_private=allow_private) for allow_private in (False, True)
        )

    @classmethod
    @asynccontextmanager
    async def open(cls, *, connections: int = 512, tls: SSLContext | None = None) -> AsyncIterator[Webhook]:
        """A sender in the running loop with at most `connections` requests in flight; closes them all at
        the end.

        `tls` replaces the system's trusted authorities.
        """
        webhook = cls(connections=connections, tls=tls)
        try:
            yield webhook
        finally:
            await webhook._guarded.close()
            await webhook._open.close()

    @property
    def free(self) -> int:
        """How many more sends can be begun now."""
        return self._connections - self._busy

    async def send(self, send: Send) -> Result:
        """One attempt: at most one request leaves, not before `send.start` and not later than the partner's
        lateness.

        The partner's timeout holds from the slot to the last byte of the answer, connecting included.
        Whatever the partner does comes back as a value; only cancellation passes through, and then the
        connection is closed.
        """
        if self._busy >= self._connections:
            return SlotMissed(late_by=timedelta(0), reason="no free connection")
        try:
            route = self._route(send.partner, send.envelope.target_uri)
            request = route.render(send)
        except ValueError as error:
            return Failed(Stage.REQUEST, may_have_arrived=False, reason=f"no valid request: {error}",
                          sent_at=None, ended_at=monotonic())  # fmt: skip
        self._busy += 1
        trip = _Trip(send.envelope.trace_id)
        clock = asyncio.timeout(max(send.start - monotonic(), 0.0) + route.timeout_s)
        try:
            async with clock:
                return await self._attempt(trip, route, request, send)
        except Exception as error:  # noqa: BLE001 - whatever a partner provokes has to become a value
            return _failure(error, trip, expired=clock.expired())
        finally:
            self._busy -= 1
            if trip.connection is not None:
                _abort(trip.connection)

    def _route(self, partner: Partner, target_uri: str) -> _Route:
        uri = target_uri or partner.endpoint
        key = (partner.tenant, partner.name, uri)
        route = self._routes.get(key)
        # Another object is another configuration: what was changed while we ran holds from the next send on.
        if route is None or route.partner is not partner:
            # The router has asked the same, perhaps days ago and of other hosts.
            if target_uri and (why := target_refusal(target_uri, partner)):
                raise ValueError(why)
            if len(self._routes) >= _ROUTES:
                self._routes.clear()
            route = self._routes[key] = _Route(partner, uri)
        return route

    async def _attempt(self, trip: _Trip, route: _Route, request: bytes, send: Send) -> Result:
        start = send.start
        connector = self._open if route.allow_private else self._guarded
        latest = start + route.lateness_s
        slow = False
        for _ in range(_CONNECTION_TRIES):
            in_time = monotonic() <= latest
            trip.connection = connection = await connector.connect(route.request, [], _UNLIMITED)
            slow = slow or (in_time and monotonic() > latest)
            while (early := start - monotonic()) > 0:
                await _pause(early)
            protocol, transport = connection.protocol, connection.transport
            if (
                isinstance(protocol, Handler)
                and transport is not None
                and await self._is_quiet(protocol, transport, route)
            ):
                break
            _abort(connection)
        else:
            return Failed(
                Stage.CONNECT,
                may_have_arrived=False,
                reason="no connection: closed or spoken on before the request",
                sent_at=None,
                ended_at=monotonic(),
            )
        protocol.raw = 0
        protocol.set_response_params(
            read_until_eof=True, auto_decompress=False, read_bufsize=BODY_LIMIT, max_headers=_HEADER_LINES
        )
        # uvloop writes at once only above the mark; otherwise after everything else that is ready in this
        # turn.
        transport.set_write_buffer_limits(high=0)
        late = monotonic() - start
        if late > route.lateness_s:
            connection.release()
            return SlotMissed(late_by=timedelta(seconds=late), connecting=slow)
        trip.sent_at = monotonic()
        transport.write(request)
        trip.sent_at = sent_at = monotonic()
        if sent_at - start > route.lateness_s and send.late is not None:
            send.late(sent_at - start - route.lateness_s)
        return await _answer(trip, protocol, connection, send, sent_at)

    async def _is_quiet(self, protocol: Handler, transport: asyncio.Transport, route: _Route) -> bool:
        """Whether a connection can carry a request: still open, and nobody has spoken on it out of turn.

        A kept connection that the partner has just ended would make a false unknown; bytes that nobody asked for
        would be read as the answer to the next payment. The kernel knows both before the loop does.
        """
        for _ in range(_TURNS):
            if not protocol.is_connected() or protocol.should_close:
                return False
            waiting = self._look(transport.get_extra_info("socket").fileno())
            if not waiting:
                return True
            if not route.tls or waiting & ~POLLIN:
                return False
            # TLS has words of its own (session tickets): only the loop, in its turn, can tell them from an answer.
            await asyncio.sleep(0)
        return False

    def _look(self, descriptor: int) -> int:
        """What the kernel holds for a connection: `POLLIN`, or that it has ended; 0 for nothing."""
        self._poll.register(descriptor, _ENDED | POLLIN)
        try:
            found = self._poll.poll(0)
            return found[0][1] if found else 0
        finally:
            self._poll.unregister(descriptor)


def _abort(connection: Connection) -> None:
    """End a connection at once. Closing it would first wait until the partner has read what is unsent, or has
    said goodbye as TLS asks it to: as long as it likes, and longer than its place here is counted."""
    transport = connection.transport
    connection.close()
    if transport is not None:
        transport.abort()


async def _pause(seconds: float) -> None:
    """Give way for about this long; uvloop may wake up to a millisecond early, so the caller looks again."""
    await asyncio.sleep(seconds if seconds > 0.0005 else 0)


async def _answer(
    trip: _Trip, protocol: Handler, connection: Connection, send: Send, sent_at: float
) -> Answer | Failed:
    for _ in range(INTERIM_ANSWERS):
        message, payload = await protocol.read()
        if not 100 <= message.code <= 199 or message.code == 101:
            break
    else:
        return Failed(Stage.GARBLED, may_have_arrived=True, reason="interim answers without end",
                      sent_at=sent_at, ended_at=monotonic())  # fmt: skip
    trip.status = message.code
    body, whole = await _body(payload)
    whole = whole and not protocol.cut
    ended_at = monotonic()
    if whole:
        connection.release()
    asked = message.headers.get("Retry-After")
    wait = None
    if asked is not None:
        wait = parse_retry_after(asked, datetime.fromtimestamp(send.timestamp_s + ended_at - sent_at, UTC))
    headers: dict[str, str] = {}
    if send.partner.retry_when is not None:
        for name, value in message.headers.items():
            known = headers.get(name.lower())
            headers[name.lower()] = value if known is None else f"{known}, {value}"
    return Answer(message.code, wait, body, not whole, sent_at, ended_at, tuple(headers.items()))


async def _body(payload: StreamReader) -> tuple[bytes, bool]:
    """The body up to the limit, and whether that is all of it."""
    if payload.is_eof():  # the usual case: head and body came in one packet
        body = payload.read_nowait()
    else:
        pieces, size = [], 0
        while size <= BODY_LIMIT and (piece := await payload.readany()):
            pieces.append(piece)
            size += len(piece)
        body = b"".join(pieces)
    return (body, True) if len(body) <= BODY_LIMIT else (body[:BODY_LIMIT], False)


def _failure(error: Exception, trip: _Trip, *, expired: bool) -> Failed:
    stage, reason = _stage(error, trip, expired=expired)
    return Failed(
        stage,
        may_have_arrived=trip.sent_at is not None,
        reason=reason,
        sent_at=trip.sent_at,
        ended_at=monotonic(),
        status=trip.status,
    )


def _stage(error: Exception, trip: _Trip, *, expired: bool) -> tuple[Stage, str]:
    sent = trip.sent_at is not None
    if expired and isinstance(error, TimeoutError):
        return Stage.TIMEOUT, "timeout waiting for the answer" if sent else "timeout while connecting"
    match error:
        case HttpProcessingError():
            return Stage.GARBLED, "the answer is not HTTP"
        case ClientPayloadError():
            return Stage.RESET, "the answer broke off"
        case ClientConnectorDNSError():
            return Stage.DNS, "the name does not resolve"
        case ClientConnectorCertificateError():
            return Stage.TLS, "the certificate is not valid"
        case ClientConnectorSSLError() | SSLError() if not sent:
            return Stage.TLS, "no TLS connection"
        case ClientConnectorError() if isinstance(error.os_error, AddressRefused):
            return Stage.ADDRESS, f"may not connect there: {error.os_error}"
        case ClientError() | OSError():
            code = error.errno if isinstance(error, OSError) else None
            detail = os.strerror(code).lower() if code is not None and code > 0 else "connection ended"
            if sent:
                return Stage.RESET, f"no answer: {detail}"
            return Stage.CONNECT, f"no connection: {detail}"
        case _:
            fields = {"error": type(error).__name__, "trace_id": trip.trace_id}
            _log.warning("send_unforeseen", exc_info=error, extra={"fields": fields})
            name = type(error).__name__
            return (Stage.GARBLED, f"unforeseen: {name}") if sent else (Stage.CONNECT, f"unforeseen: {name}")
