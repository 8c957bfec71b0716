"""The socket of `madeira serve`: connections within bounds, and an end that breaks nothing off."""

from __future__ import annotations

import asyncio
import logging
from datetime import timedelta
from typing import Final

from aiohttp import web

from madeira.api import Api
from madeira.problem import Kind, problem

log = logging.getLogger(__name__)

MOST_CONNECTIONS: Final = 4096
_KEEPALIVE_S: Final = 75.0
_LINGERING_S: Final = 3.0  # so long what is refused unread is still read, and dropped: the answer arrives
_BACKLOG: Final = 1024

_SILENT: Final = logging.getLogger(f"{__name__}.access")
_SILENT.disabled = True


class _Connection(web.RequestHandler):
    """aiohttp's side of a connection, which tells also its own refusals as problems, and logs none of them."""

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        if status == 400:
            return problem(Kind.HTTP, f"it cannot be read: {type(exc).__name__}").closing()
        log.error("request_failed", exc_info=exc, extra={"fields": {"status": status}})
        return problem(Kind.INTERNAL, "see the log of this process").closing()


class _Connections(web.Server):
    """Makes connections, up to `most` at a time."""

    def __init__(self, api: Api, most: int) -> None:
        super().__init__(api.handle)
        self._most = most

    def __call__(self) -> web.RequestHandler:
        return _Connection(
            self,
            loop=asyncio.get_running_loop(),
            access_log=_SILENT,
            auto_decompress=False,
            keepalive_timeout=_KEEPALIVE_S,
            lingering_time=_LINGERING_S,
        )

    def connection_made(self, handler: web.RequestHandler, transport: asyncio.Transport) -> None:
        super().connection_made(handler, transport)
        if len(self._connections) > self._most:
            transport.write(problem(Kind.STORE, "too many connections", retry_after_s=1).closing().whole())
            handler.force_close()


class Listener:
    """Listens for one process until `stop`."""

    def __init__(self, api: Api, *, most_connections: int = MOST_CONNECTIONS) -> None:
        self._api = api
        self._connections = _Connections(api, most_connections)
        self._listening: asyncio.Server | None = None

    async def start(self, host: str, port: int, *, reuse_port: bool = False) -> int:
        """Listen; answers the port, for `port` 0. Raises `OSError` where the address is taken."""
        loop = asyncio.get_running_loop()
        self._listening = await loop.create_server(
            self._connections, host, port, reuse_port=reuse_port or None, backlog=_BACKLOG
        )
        bound: int = self._listening.sockets[0].getsockname()[1]
        return bound

    async def stop(self, grace: timedelta = timedelta(seconds=10)) -> None:
        """Take no connection, refuse every new request with 503, and give those under way `grace` to end."""
        self._api.leave()
        if self._listening is not None:
            self._listening.close()
        try:
            async with asyncio.timeout(grace.total_seconds()):
                await self._api.idle()
        except TimeoutError:
            log.warning("requests_broken_off")
        # By then only answers are being written.
        await self._connections.shutdown(timeout=1.0)
