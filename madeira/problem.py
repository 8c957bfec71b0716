"""What a client is told over HTTP: answers as bytes, and every kind of refusal with its status (RFC 9457)."""

from __future__ import annotations

import asyncio
import time
from email.utils import formatdate
from enum import Enum
from http import HTTPStatus
from typing import Final

import msgspec
from aiohttp import web

from madeira.format import Mistake

JSON: Final = "application/json"
NDJSON: Final = "application/x-ndjson"
PROBLEM: Final = "application/problem+json"

_UNREAD_WITHIN_S: Final = 10.0


class Kind(Enum):
    """Why a request, or one event of it, was not taken: the end of the problem's `type`, status, title."""

    FORMAT = ("format", 400, "The event has mistakes")
    HEADERS = ("headers", 400, "A header stands more than once")
    HTTP = ("http", 400, "The request is not HTTP")
    SIGNATURE = ("signature", 401, "The signature does not prove the sender")
    NOT_FOUND = ("not-found", 404, "There is nothing of that name")
    METHOD = ("method", 405, "The path does not take this method")
    SLOW = ("slow", 408, "The body took too long")
    CONFLICT = ("conflict", 409, "The same id came with another body")
    SIZE = ("size", 413, "The body is too large")
    CONTENT = ("content", 415, "The body is not plain JSON")
    RATE = ("rate", 429, "The source is over its rate")
    INTERNAL = ("internal", 500, "Madeira failed")
    STORE = ("store", 503, "Nothing can be stored now")
    FULL = ("full", 503, "There is no room for more now")
    NOT_READY = ("not-ready", 503, "The source is not configured yet")
    LEAVING = ("leaving", 503, "This process is leaving")

    def __init__(self, slug: str, status: int, title: str) -> None:
        self.type = f"urn:madeira:problem:{slug}"
        self.status = status
        self.title = title


class Problem(msgspec.Struct, frozen=True, omit_defaults=True):
    """The body of a refusal."""

    type: str
    title: str
    status: int
    detail: str
    errors: tuple[Mistake, ...] = ()
    trace_id: str | None = None


class Answer(web.StreamResponse):
    """A whole answer, written at once as bytes: half the time of `web.Response` at our sizes.

    Only what `RequestHandler` asks of a response is here: `prepare`, `write_eof` and `keep_alive`.
    """

    def __init__(self, status: int, body: bytes, content_type: str = JSON, headers: str = "") -> None:
        """`headers` are whole lines, each with its line end."""
        # Not super().__init__: its headers and cookies are what is saved here.
        self._code = status
        self._head = (
            f"{_START[status]}Content-Type: {content_type}\r\nContent-Length: {len(body)}\r\n{headers}"
        )
        self._content = body
        self._keep_alive = True

    @property
    def status(self) -> int:
        """The HTTP status."""
        return self._code

    @property
    def content(self) -> bytes:
        """The body."""
        return self._content

    def closing(self) -> Answer:
        """The connection ends with this answer."""
        self._keep_alive = False
        return self

    def whole(self, *, with_body: bool = True) -> bytes:
        """Head and body as they go over the wire."""
        end = "\r\n" if self._keep_alive else "Connection: close\r\n\r\n"
        head = f"{self._head}Date: {_date(int(time.time()))}\r\n{end}".encode("latin-1")
        return head + self._content if with_body else head

    async def prepare(self, request: web.BaseRequest) -> None:
        """Write all of it. A client that does not read what it is told is given 10 s, then up."""
        transport = request.transport
        if transport is None:
            return
        self._keep_alive = self._keep_alive and request.keep_alive and request.version >= (1, 1)
        transport.write(self.whole(with_body=request.method != "HEAD"))
        if transport.get_write_buffer_size():
            try:
                async with asyncio.timeout(_UNREAD_WITHIN_S):
                    await request.protocol._drain_helper()
            except TimeoutError:
                transport.abort()

    async def write_eof(self, data: bytes = b"") -> None:
        """Nothing is left to write."""


_START: Final = {status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n" for status in HTTPStatus}
_dated: tuple[int, str] = (0, "")


def _date(now_s: int) -> str:
    global _dated  # noqa: PLW0603 one text a second for all answers
    if _dated[0] != now_s:
        _dated = (now_s, formatdate(now_s, usegmt=True))
    return _dated[1]


def problem(
    kind: Kind,
    detail: str,
    *,
    errors: tuple[Mistake, ...] = (),
    trace_id: str | None = None,
    retry_after_s: int | None = None,
    headers: str = "",
) -> Answer:
    """The refusal of a request. `headers` are whole lines besides those that the kind brings."""
    body = msgspec.json.encode(Problem(kind.type, kind.title, kind.status, detail, errors, trace_id))
    if kind is Kind.SIGNATURE:
        headers += "WWW-Authenticate: Madeira-Signature\r\n"
    if trace_id is not None:
        headers += f"X-Trace-Id: {trace_id}\r\n"
    if retry_after_s is not None:
        headers += f"Retry-After: {retry_after_s}\r\n"
    return Answer(kind.status, body, PROBLEM, headers)
