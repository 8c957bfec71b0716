"""The HTTP side of Madeira on a free port of this machine, as senders meet it: real intake, real stores."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from madeira.api import Api
from madeira.listener import Listener
from madeira.metrics import Metrics
from pipelines.intake import Intake
from pipelines.live_source import LiveSource
from sinks.pool import open_pool
from streams.transit import Transit


@asynccontextmanager
async def door(
    *sources: LiveSource, database_url: str, redis_url: str, key_prefix: str, folder: Path
) -> AsyncIterator[str]:
    """Lets these sources in, and gives the address."""
    pool = await open_pool(database_url, name="test", connections=2)
    transit = Transit.open(redis_url, key_prefix)
    intake = Intake(pool, transit)
    metrics = Metrics(folder)
    api = Api(intake, metrics)
    api.adopt({source.name: source for source in sources})
    listener = Listener(api)
    try:
        await intake.look()
        yield f"http://127.0.0.1:{await listener.start('127.0.0.1', 0)}"
    finally:
        await listener.stop()
        await intake.close()
        metrics.close()
        await transit.close()
        await pool.close()
