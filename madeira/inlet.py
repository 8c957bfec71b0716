"""A request before anybody trusts it: who says they sent it, when, and its body, never more than is allowed.

Nothing here tells a sender that is not known from one whose signature is wrong.
"""

from __future__ import annotations

import asyncio
import re
from datetime import timedelta
from typing import Final

import msgspec
from aiohttp import web

from madeira.problem import Answer, Kind, problem
from sinks.signature import WINDOW_S

_TIMESTAMP: Final = re.compile(r"[0-9]{1,12}")
_MILLISECONDS: Final = re.compile(r"[0-9]{13}")
_SIGNED_BY: Final = ("Madeira-Source", "Madeira-Timestamp", "Madeira-Signature")
_CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"


class Claim(msgspec.Struct, frozen=True):
    """What the three headers of a signature say; nothing of it is proved."""

    source: str
    timestamp: str
    signature: str


def claim_of(request: web.BaseRequest, *, now_s: float) -> Claim | Answer:
    """Who says they sent this; an answer where a header is missing, doubled, or too far from `now_s`."""
    headers = request.headers
    values = []
    for name in _SIGNED_BY:
        given = headers.getall(name, ())
        if len(given) != 1:
            if given:
                return problem(Kind.HEADERS, f"{name} stands {len(given)} times: send it once")
            return problem(Kind.SIGNATURE, f"{name} is missing: see docs/sending.md")
        values.append(given[0])
    source, timestamp, signature = values
    if not _TIMESTAMP.fullmatch(timestamp):
        hint = " (this looks like milliseconds)" if _MILLISECONDS.fullmatch(timestamp) else ""
        return problem(Kind.SIGNATURE, f"Madeira-Timestamp must be Unix time in whole seconds{hint}")
    if abs(now_s - int(timestamp)) > WINDOW_S:
        away = int(timestamp) - int(now_s)
        where = "ahead of" if away > 0 else "behind"
        return problem(
            Kind.SIGNATURE, f"Madeira-Timestamp is {abs(away)} s {where} our clock, {WINDOW_S} s are allowed"
        )
    return Claim(source, timestamp, signature)


def content_fault(request: web.BaseRequest, allowed: frozenset[str]) -> Answer | None:
    """The answer to a body that is packed, or that its Content-Type calls something else than `allowed`."""
    headers = request.headers
    encoding = headers.get("Content-Encoding")
    if encoding is not None and encoding.strip().lower() != "identity":
        return problem(Kind.CONTENT, "Content-Encoding is not taken: send the body as it is")
    media = headers.get("Content-Type")
    if media is not None and media.partition(";")[0].strip().lower() not in allowed:
        return problem(Kind.CONTENT, f"Content-Type must be {' or '.join(sorted(allowed))}")
    return None


class Room:
    """How many bytes of bodies this process holds at once, all requests together."""

    __slots__ = ("_held", "_most")

    def __init__(self, most: int) -> None:
        self._held = 0
        self._most = most

    def held(self) -> Held:
        """What one request holds: nothing yet. Call its `give_back` when the request has ended."""
        return Held(self)

    def take(self, size: int) -> bool:
        """Whether there is room for so many more bytes (less than 0: fewer); they are taken then."""
        if self._held + size > self._most:
            return False
        self._held += size
        return True


class Held:
    """The part of the room that one request has."""

    __slots__ = ("_room", "size")

    def __init__(self, room: Room) -> None:
        self._room = room
        self.size = 0

    def more(self, size: int) -> bool:
        """Whether the request may hold so many more bytes."""
        if not self._room.take(size):
            return False
        self.size += size
        return True

    def give_back(self) -> None:
        """The request holds nothing any more."""
        self._room.take(-self.size)
        self.size = 0


def body_at_hand(request: web.BaseRequest, held: Held, *, limit: int) -> bytes | Answer | None:
    """The whole body where it came with the head, as most do, or the answer that it is too large; else None."""
    content = request.content
    if not content.is_eof():
        return None
    body = content.read_nowait(-1)
    if len(body) > limit:
        return _too_large(limit)
    return body if held.more(len(body)) else _no_room()


async def body_of(request: web.BaseRequest, held: Held, *, limit: int, within: timedelta) -> bytes | Answer:
    """The whole body, at most `limit` bytes, all of it `within` that time; else the answer that says so.

    Raises `ConnectionError` where the client has hung up.
    """
    length = request.content_length
    if length is not None and length > limit:
        return _too_large(limit)
    content = request.content
    try:
        if request.headers.get("Expect", "").lower() == "100-continue" and request.transport is not None:
            request.transport.write(_CONTINUE)
        pieces, size = [], 0
        async with asyncio.timeout(within.total_seconds()):
            while piece := await content.readany():
                size += len(piece)
                if size > limit:
                    return _too_large(limit)
                if not held.more(len(piece)):
                    return _no_room()
                pieces.append(piece)
        return b"".join(pieces)
    except TimeoutError:
        took = within.total_seconds()
        return problem(Kind.SLOW, f"the whole body must have come within {took:g} s").closing()
    except web.RequestPayloadError:
        return problem(Kind.HTTP, "the body does not follow its Content-Length or chunks").closing()


def _too_large(limit: int) -> Answer:
    return problem(Kind.SIZE, f"at most {limit} bytes are taken").closing()


def _no_room() -> Answer:
    return problem(Kind.STORE, "too many bodies are under way", retry_after_s=1).closing()
