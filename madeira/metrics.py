"""Every metric that Madeira has, its name, its labels and what they may be. Nobody else names one."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from enum import StrEnum
from pathlib import Path

from psycopg_pool import AsyncConnectionPool

from pipelines.live_source import Durability
from sinks.partner import Partner
from streams.delivery import Attempt
from streams.transit import Transit

CONTENT_TYPE = "text/plain; version=1.0.0; charset=utf-8"
"""What `Metrics.render` is, for the header."""


class Refusal(StrEnum):
    """Why an event was not accepted."""

    FORMAT = "format"
    SIGNATURE = "signature"
    SLOW = "slow"
    CONFLICT = "conflict"
    SIZE = "size"
    CONTENT = "content"
    RATE = "rate"
    STORE = "store"
    FULL = "full"
    NOT_READY = "not_ready"
    LEAVING = "leaving"


class Endpoint(StrEnum):
    """How events came in: one a request, or many."""

    ONE = "one"
    BULK = "bulk"


class Metrics:
    """What one process counts, and what all of them together show. Its methods are called in the event loop.

    Counts reach the other processes within a quarter of a second.
    """

    @classmethod
    def open(cls, folder: Path) -> Metrics:
        """Count into `folder`, which all processes of this host share. Once a process."""
        raise NotImplementedError

    def adopt(self, partners: Mapping[str, Partner], sources: Collection[str]) -> None:
        """The configuration from now on: other sources count as `other`."""

    def watch(self, pool: AsyncConnectionPool, transit: Transit) -> None:
        """Read backlogs and ages from these stores at `render`. Without it they are left out."""

    def accepted(self, source: str, durability: Durability, n: int = 1) -> None:
        """So many new events got their 202."""

    def duplicate(self, source: str, durability: Durability, n: int = 1) -> None:
        """So many events were known already."""

    def refused(self, source: str, reason: Refusal, n: int = 1) -> None:
        """So many events were not accepted."""

    def ingested(self, endpoint: Endpoint, seconds: float) -> None:
        """A request with events was answered after so long."""

    def settled(self, partner: str, lane: str, attempt: Attempt) -> None:
        """A send ended; `pipelines.dispatch.Meter`. `lane` is `live` or `batch:…`."""

    def routed(self, n: int = 1) -> None:
        """So many events were routed to one partner at least."""

    def unroutable(self, n: int = 1) -> None:
        """No route took so many events, or a route failed."""

    def configuration_refused(self) -> None:
        """A changed jobs.toml had mistakes."""

    def configuration_taken(self) -> None:
        """A jobs.toml is in force from now on."""

    def stuck(self) -> None:
        """A service did not come back; written at once, for the process is about to end."""

    def flush(self) -> None:
        """Let the other processes see everything that was counted so far."""

    def close(self) -> None:
        """The end of this process: nothing of it that holds only now stays, its counts do."""

    async def render(self) -> bytes:
        """All metrics of all processes of this host, as Prometheus reads them; at most a second old."""
        raise NotImplementedError
