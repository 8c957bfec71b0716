"""What a worker tells over HTTP, by a real socket."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
import pytest

from madeira.embedded_server import free_port
from madeira.metrics import CONTENT_TYPE
from madeira.probes import probes
from streams.errors import ConfigurationError


class Shown:
    """Metrics of one line."""

    async def render(self) -> bytes:
        """That line."""
        return b"madeira_build_info 1.0\n"


@asynccontextmanager
async def asked(troubles: list[str]) -> AsyncIterator[aiohttp.ClientSession]:
    """Probes of a process with these troubles, and somebody who asks them."""
    port = free_port()
    async with (
        probes(Shown(), lambda: tuple(troubles), host="127.0.0.1", port=port),
        aiohttp.ClientSession(f"http://127.0.0.1:{port}") as session,
    ):
        yield session


async def test_ready_is_who_has_no_troubles() -> None:
    """503 with their names while there are some; alive all the while."""
    troubles = ["record"]
    async with asked(troubles) as session:
        for _ in range(2):
            async with session.get("/readyz") as answer:
                assert answer.status == (503 if troubles else 200)
                assert (await answer.json()).get("away", []) == troubles
            async with session.get("/healthz") as answer:
                assert answer.status == 200
            troubles.clear()


async def test_metrics_and_nothing_else() -> None:
    """The text of the metrics with its type; other paths and methods are refused."""
    async with asked([]) as session:
        async with session.get("/metrics") as answer:
            assert (answer.status, await answer.read()) == (200, b"madeira_build_info 1.0\n")
            assert answer.headers["Content-Type"] == CONTENT_TYPE
        async with session.get("/v1/events") as answer:
            assert answer.status == 404
        async with session.post("/metrics") as answer:
            assert (answer.status, answer.headers["Allow"]) == (405, "GET, HEAD")


async def test_an_address_that_is_taken_is_a_mistake_in_words() -> None:
    """It names the address and what to do."""
    port = free_port()
    async with probes(Shown(), tuple, host="127.0.0.1", port=port):
        with pytest.raises(
            ConfigurationError, match=f"--metrics: cannot listen at 127.0.0.1:{port} .*another port"
        ):
            async with probes(Shown(), tuple, host="127.0.0.1", port=port):
                pass
