"""Connections to partners: guarded where they are made, and bounded in what one of them can make us parse."""

from __future__ import annotations

import asyncio
from functools import partial
from ssl import SSLContext
from typing import Final

from aiohttp import TCPConnector
from aiohttp.client_proto import ResponseHandler
from aiohttp.http_exceptions import HttpProcessingError

from sinks.address import guarded_socket

KEEPALIVE_S: Final = 3.0
"""An idle connection is not kept longer: one that the partner has just closed makes a false unknown."""

INTERIM_ANSWERS: Final = 16
"""So many answers may wait unread on one connection, and so many interim ones may precede one."""

_SLICE: Final = 1024
_OVERHEAD_LIMIT: Final = (
    16 * 1024
)  # bytes of an answer that are not its body: head, interim answers, chunk sizes


class Handler(ResponseHandler):
    """aiohttp's reader of answers, bounded in what it parses before anybody else has a turn of the loop.

    Interim or unasked answers are 20 bytes each and cost the parser as much as a whole one, chunks of one byte are
    6: what the kernel hands over at once can hold ten thousand of either, and the slots of all other partners would
    go by meanwhile.
    """

    raw = 0
    """Bytes since the request."""
    cut = False
    """A body was ended by us, since what came was mostly not it."""

    def data_received(self, data: bytes) -> None:
        for at in range(0, len(data), _SLICE) or (0,):
            piece = data[at : at + _SLICE]
            self.raw += len(piece)
            super().data_received(piece)
            body = 0 if self._payload is None else self._payload.total_bytes
            if self.raw - body > _OVERHEAD_LIMIT or len(self._buffer) > INTERIM_ANSWERS:
                self._overrun()
            if self.transport is None or self.transport.is_closing():
                return

    def _overrun(self) -> None:
        payload, transport = self._payload, self.transport
        # Else the end of the connection would take back from the body what has come of it.
        self._parser = self._payload = None
        if payload is not None and not payload.is_eof():
            self.cut = True
            payload.feed_eof()
        self.set_exception(HttpProcessingError(message="an answer without end"))
        if transport is not None:
            transport.abort()


def _handler(loop: asyncio.AbstractEventLoop) -> ResponseHandler:
    return Handler(loop)


class Connector(TCPConnector):
    """aiohttp's connector with our reader."""

    def __init__(self, *, tls: SSLContext | None, allow_private: bool) -> None:
        super().__init__(
            limit=0,  # `send` counts: who finds none free gives the slot up and does not queue
            keepalive_timeout=KEEPALIVE_S,
            ssl=tls if tls is not None else True,
            socket_factory=guarded_socket(allow_private=allow_private),
        )
        self._factory = partial(_handler, self._loop)
