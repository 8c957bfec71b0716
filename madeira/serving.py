"""`madeira serve`: takes live events over HTTP until it is asked to leave."""

from __future__ import annotations

import asyncio
import logging
import os
from contextlib import AsyncExitStack
from datetime import timedelta

from madeira.address import listening_at, require_free, shown
from madeira.api import Api
from madeira.exit import leave_within
from madeira.listener import Listener
from madeira.reload import Watched
from madeira.running import (
    LISTEN_SAID_BY,
    SERVERS_S,
    counting,
    followed,
    keep_up_of,
    leave_stuck,
    spare_collections,
)
from madeira.runtime import Crew, Service, stop_on_signals
from madeira.settings import Settings
from madeira.supervisor import leave_with_supervisor, processes_like_this, supervise
from madeira.wiring import Servers, servers
from madeira.worker import AWAY, open_stores
from pipelines.intake import Intake

log = logging.getLogger(__name__)

_REQUESTS = timedelta(seconds=10)
"""What requests under way have to end, after which they are broken off."""
_GRACE_S = _REQUESTS.total_seconds() + 8.0
_CONNECTIONS = 8


async def serve(settings: Settings, *, processes: int, listen: tuple[str, int] | None = None) -> int:
    """One process that takes events, or a supervisor over several that share the address and the rates."""
    host, port = listen or settings.listen
    stop = asyncio.Event()
    stop_on_signals(stop, lambda: leave_within(_GRACE_S + (SERVERS_S if processes > 1 else 0.0)))
    if processes_like_this() == 1:
        require_free(host, port, LISTEN_SAID_BY)
    with servers(settings) as where:
        if processes > 1:
            command = ["serve", f"--listen={shown(host, port)}"]
            return await supervise(command, processes=processes, stop=stop, grace_s=lambda: _GRACE_S)
        await serve_until(stop, settings, where, host=host, port=port)
    return 0


async def serve_until(
    stop: asyncio.Event, settings: Settings, where: Servers, *, host: str, port: int
) -> None:
    """Take events at this address until `stop` is set; then answer what is under way, and leave."""
    spare_collections()
    processes = processes_like_this()
    async with AsyncExitStack() as opened:
        stores = await opened.enter_async_context(
            open_stores(
                where.database_url, where.redis_url, key_prefix=settings.key_prefix, connections=_CONNECTIONS
            )
        )
        metrics = opened.enter_context(counting(settings, stores))
        intake = Intake(stores.pool, stores.transit)
        watched = Watched(os.environ, settings)
        crew = Crew([], stop=stop, away=AWAY, on_stuck=lambda: leave_stuck(metrics))
        api = Api(intake, metrics, processes=processes, troubles=crew.ails)
        api.adopt(settings.sources, settings.unready_sources)

        async def look() -> float:
            await intake.look()
            return 1.0

        async def follow_configuration() -> float:
            changed = await followed(watched, metrics)
            if changed is not None:
                api.adopt(changed.sources, changed.unready_sources)
            return 1.0

        keep_up = keep_up_of(where)

        async def keep_servers_up() -> float:
            if keep_up is not None:
                await asyncio.to_thread(keep_up)
            return 0.5

        crew.add(Service("look", look))
        crew.add(Service("configuration", follow_configuration))
        if keep_up is not None:
            crew.add(Service("servers", keep_servers_up))

        await look()  # the first request finds Redis's clock
        listener = Listener(api)
        with listening_at(host, port, LISTEN_SAID_BY):
            await listener.start(host, port, reuse_port=processes > 1)
        fields = {"listen": shown(host, port), "pid": os.getpid(), "sources": sorted(settings.sources)}
        log.info("serving", extra={"fields": fields})
        ended = asyncio.create_task(leave_with_supervisor(stop, lambda: leave_within(_GRACE_S)))
        try:
            await crew.run()
        finally:
            ended.cancel()
            await listener.stop(_REQUESTS)
            await intake.close()
        log.info("serving_ended", extra={"fields": {"pid": os.getpid()}})
