"""What a worker tells over HTTP where it is asked to: its metrics, and whether it is alive and ready."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Protocol

import msgspec
from aiohttp import web

from madeira.address import listening_at
from madeira.metrics import CONTENT_TYPE
from madeira.problem import Answer, Kind, problem


class Renders(Protocol):
    """What shows the metrics; `madeira.metrics.Metrics`."""

    async def render(self) -> bytes:
        """All metrics of this host."""


@asynccontextmanager
async def probes(
    renders: Renders, troubles: Callable[[], Sequence[str]], *, host: str, port: int, reuse_port: bool = False
) -> AsyncIterator[None]:
    """Answer /metrics, /healthz and /readyz there. Ready is who has no `troubles`.

    Raises `ConfigurationError` where the address cannot be had.
    """

    async def answer(request: web.BaseRequest) -> web.StreamResponse:
        if request.path not in ("/metrics", "/healthz", "/readyz"):
            return problem(Kind.NOT_FOUND, "here are /metrics, /healthz and /readyz")
        if request.method not in ("GET", "HEAD"):
            return problem(Kind.METHOD, "use GET, HEAD", headers="Allow: GET, HEAD\r\n")
        if request.path == "/metrics":
            return Answer(200, await renders.render(), CONTENT_TYPE)
        away = list(troubles()) if request.path == "/readyz" else []
        if away:
            return Answer(503, msgspec.json.encode({"status": "not_ready", "away": away}))
        return Answer(200, b'{"status":"ready"}' if request.path == "/readyz" else b'{"status":"alive"}')

    connections = web.Server(answer, access_log=None)
    with listening_at(host, port, "--metrics"):
        server = await asyncio.get_running_loop().create_server(
            connections, host, port, reuse_port=reuse_port or None
        )
    try:
        yield
    finally:
        server.close()
        await connections.shutdown(timeout=1.0)
