"""The commands that run until they are asked to leave: `work`, `schedule` and `up`; `serve` is in `serving`."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack, contextmanager, suppress
from datetime import UTC, datetime, timedelta

from madeira.address import require_free, shown
from madeira.commands import scheduler_for
from madeira.exit import leave_within
from madeira.metrics import Metrics
from madeira.reload import Watched
from madeira.runtime import brief, stop_on_signals
from madeira.settings import Settings, load
from madeira.supervisor import leave_with_supervisor, processes_like_this, supervise, supervisor_gone
from madeira.wiring import Servers, servers
from madeira.worker import Stores, Worker, open_stores
from scheduler.service import Service
from sinks.partner import Partner
from sinks.webhook import Webhook
from streams.errors import ConfigurationError, MadeiraError, StoreUnavailable

log = logging.getLogger(__name__)

Tags = tuple[tuple[str, str], ...]
"""Names and values, all of which a partner must have."""

LISTEN_SAID_BY = "MADEIRA_LISTEN or --listen"

_CONNECTIONS = 512
SERVERS_S = 5.0
"""What a supervisor has for the embedded servers, after its children have left."""
_STUCK_S = 5.0
_SCHEDULER_S = 25.0


async def work(
    settings: Settings, *, processes: int, tags: Tags = (), metrics_at: tuple[str, int] | None = None
) -> int:
    """One worker process for the partners with these tags, or a supervisor over several.

    At `metrics_at` (host, port) it tells its metrics and whether it is ready; one of several does.
    """
    stop = asyncio.Event()
    stop_on_signals(stop, lambda: leave_within(_grace_s(settings) + (SERVERS_S if processes > 1 else 0.0)))
    require_ready(settings, tags)
    _require_partners(settings, tags)
    if metrics_at is not None and processes_like_this() == 1:
        require_free(*metrics_at, "--metrics")
    with servers(settings) as where:
        if processes > 1:
            options = [f"--tags={name}={value}" for name, value in tags]
            if metrics_at is not None:
                options.append(f"--metrics={shown(*metrics_at)}")
            return await supervise(
                ["work", *options], processes=processes, stop=stop, grace_s=lambda: _grace_s(settings)
            )
        await work_until(stop, settings, where, tags=tags, metrics_at=metrics_at)
    return 0


async def up(settings: Settings, *, processes: int) -> int:
    """Workers, scheduler and, if there are sources, the way in, as processes of their own, until a signal."""
    stop = asyncio.Event()
    stop_on_signals(stop, lambda: leave_within(_grace_s(settings) + SERVERS_S))

    async def kept(command: str, number: int) -> int:
        return await supervise([command], processes=number, stop=stop, grace_s=lambda: _grace_s(settings))

    require_ready(settings)
    if settings.sources:
        require_free(*settings.listen, LISTEN_SAID_BY)
    with servers(settings):
        codes = await asyncio.gather(
            kept("work", processes),
            kept("schedule", 1),
            *([kept("serve", 1)] if settings.sources else []),
        )
    return max(codes)


async def work_until(
    stop: asyncio.Event,
    settings: Settings,
    where: Servers,
    *,
    tags: Tags = (),
    metrics_at: tuple[str, int] | None = None,
) -> None:
    """All services of one worker process until `stop` is set."""
    require_ready(settings, tags)
    spare_collections()
    async with AsyncExitStack() as opened:
        stores = await opened.enter_async_context(
            open_stores(where.database_url, where.redis_url, key_prefix=settings.key_prefix)
        )
        metrics = opened.enter_context(counting(settings, stores))
        webhook = await opened.enter_async_context(Webhook.open(connections=_CONNECTIONS))
        watched = Watched(os.environ, settings, require=lambda found: require_ready(found, tags))
        worker = Worker(
            stores,
            webhook,
            settings.partners,
            routes=settings.routes,
            drains=lambda partner: _has(partner, tags),
            counts=metrics,
            configuration=lambda: followed(watched, metrics),
            keep_up=keep_up_of(where),
            on_stuck=lambda: leave_stuck(metrics),
        )
        if metrics_at is not None:
            from madeira.probes import probes  # aiohttp's server: a tenth of a second that few need

            host, port = metrics_at
            shared = processes_like_this() > 1
            await opened.enter_async_context(
                probes(metrics, worker.ails, host=host, port=port, reuse_port=shared)
            )
        ended = asyncio.create_task(
            leave_with_supervisor(stop, lambda: leave_within(_grace_s(watched.settings)))
        )
        try:
            await worker.run(stop)
        finally:
            ended.cancel()


# -- for whoever runs ------------------------------------------------------------------------------------


def spare_collections() -> None:
    """What is there by now stays; a full collection over it would cost tens of milliseconds, and their slots."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)


@contextmanager
def counting(settings: Settings, stores: Stores) -> Iterator[Metrics]:
    """This process's metrics, which look at these stores. Raises `ConfigurationError` where they cannot be kept."""
    try:
        metrics = Metrics.open(settings.metrics_dir)
    except OSError as error:
        mistake = (
            f"{settings.metrics_dir}: metrics cannot be kept there ({error.strerror}): mend that, or name "
            "another folder with MADEIRA_METRICS_DIR"
        )
        raise ConfigurationError((mistake,)) from None
    metrics.adopt(settings.partners, settings.sources)
    metrics.watch(stores.pool, stores.transit)
    metrics.configuration_taken()
    try:
        yield metrics
    finally:
        metrics.close()


async def followed(watched: Watched, metrics: Metrics) -> Settings | None:
    """What jobs.toml says now, once after each change; counted."""
    refusals = watched.refusals
    settings = await asyncio.to_thread(watched.look)
    if watched.refusals > refusals:
        metrics.configuration_refused()
    if settings is not None:
        metrics.configuration_taken()
        metrics.adopt(settings.partners, settings.sources)
    return settings


def leave_stuck(metrics: Metrics) -> None:
    """A service does not come back: this process is gone in some seconds, whatever it does."""
    leave_within(_STUCK_S)
    metrics.stuck()


def _has(partner: Partner, tags: Tags) -> bool:
    return set(tags) <= set(partner.tags)


def _require_partners(settings: Settings, tags: Tags) -> None:
    """Somebody who sends to nobody was meant to send to somebody."""
    if tags and not any(_has(partner, tags) for partner in settings.partners.values()):
        wanted = ", ".join(f"{name}={value}" for name, value in tags)
        there = sorted(
            {f"{name}={value}" for partner in settings.partners.values() for name, value in partner.tags}
        )
        raise ConfigurationError(
            (
                f"--tags: no partner in {settings.config} has {wanted}; "
                + (f"tags there are {', '.join(there)}" if there else "no partner there has tags"),
            )
        )


def keep_up_of(where: Servers) -> Callable[[], None] | None:
    """Starts embedded servers again that died; None where both are given.

    What it does raises `EmbeddedError` for what may pass, and `RuntimeError` once a server had to take another
    port: then whoever has the old URL must leave and be started again.
    """
    embedded = where.embedded
    if embedded is None:
        return None
    urls = embedded.servers.redis_url, embedded.servers.database_url

    def keep_up() -> None:
        now = embedded.again()
        if (now.redis_url, now.database_url) != urls:
            raise RuntimeError("another program took an embedded server's port; start this process again")

    return keep_up


def require_ready(settings: Settings, tags: Tags = ()) -> None:
    """A partner whose signing key is not set must not be sent unsigned payments. Raises `ConfigurationError`.

    Only those with these tags: whoever does not send to a partner need not have its keys.
    """
    unready = sorted(name for name in settings.unready_partners if _has(settings.partners[name], tags))
    if unready:
        raise ConfigurationError(
            tuple(
                f"{settings.config}: partners.{name} needs {', '.join(settings.unready_partners[name])}, not set "
                "here: start this program with it, or take that line out"
                for name in unready
            )
        )


def _grace_s(settings: Settings) -> float:
    """How long leaving may take, by jobs.toml as it is now, which may have changed since `settings` were read."""
    timeouts = [partner.timeout for partner in settings.partners.values()]
    with suppress(MadeiraError):
        timeouts += [partner.timeout for partner in load(os.environ).partners.values()]
    return max(timeouts, default=timedelta(0)).total_seconds() + 5.0


def schedule(settings: Settings) -> int:
    """Fire jobs until SIGTERM or SIGINT; leave with 1 when a job is no longer looked at."""
    stop = threading.Event()

    def asked(*_: object) -> None:
        if not stop.is_set():
            leave_within(_SCHEDULER_S)  # a run under way is gone on with by the next scheduler
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, asked)
    with servers(settings) as where:
        service = Service(scheduler_for(settings, where.database_url, now=_now))
        service.start()
        watched = Watched(os.environ, settings)
        keep_up = keep_up_of(where)
        try:
            while not stop.wait(1.0):
                if keep_up is not None:
                    try:
                        keep_up()
                    except StoreUnavailable as error:
                        log.warning("servers_not_kept_up", extra={"fields": {"error": brief(error)}})
                changed = watched.look()
                if changed is not None:
                    service.adopt(changed.jobs)
                if service.stuck(_now()):
                    leave_within(_STUCK_S)
                    return 1
                if supervisor_gone():
                    log.warning("supervisor_gone")
                    asked()
        finally:
            service.stop()
    return 0


def _now() -> datetime:
    return datetime.now(UTC)
