"""Opens and closes everything: which servers are meant, whether their schema fits, who migrates."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from madeira.embedded import Embedded
from madeira.settings import Settings
from sinks.migrate import migrate, require_current


@dataclass(frozen=True, slots=True)
class Servers:
    """Where the two stores are. `embedded` keeps private ones running; None where both were given."""

    database_url: str
    redis_url: str
    embedded: Embedded | None


@contextmanager
def servers(settings: Settings, *, check_schema: bool = True) -> Iterator[Servers]:
    """The stores that the settings name, or embedded ones, started and migrated by whoever comes first.

    Raises `SchemaTooOld` for a given database that lacks a migration: on somebody's server, that is for him to run.
    """
    if settings.database_url and settings.redis_url:
        if check_schema:
            require_current(settings.database_url)
        yield Servers(settings.database_url, settings.redis_url, None)
        return
    embedded = Embedded.start(settings.var)
    try:
        database_url = settings.database_url or embedded.servers.database_url
        if not settings.database_url:
            migrate(database_url)
        elif check_schema:
            require_current(database_url)
        yield Servers(database_url, settings.redis_url or embedded.servers.redis_url, embedded)
    finally:
        embedded.release()
