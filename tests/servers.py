"""The servers that tests run against: embedded ones by default, given ones, or containers.

Given: MADEIRA_TEST_DATABASE_URL (whose user may create databases) and MADEIRA_TEST_REDIS_URL; either alone
is fine, the other one is then embedded.
"""

from __future__ import annotations

import secrets
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import psycopg
from psycopg import sql

from madeira.embedded import Embedded
from sinks.migrate import migrate


@dataclass(frozen=True, slots=True)
class Servers:
    """Where the tests' servers are; ``database_url`` is the one that may create others."""

    redis_url: str
    database_url: str
    redis_given: bool = False


@contextmanager
def servers(environ: Mapping[str, str]) -> Iterator[Servers]:
    """What the environment gives, embedded where it gives nothing."""
    redis_url = environ.get("MADEIRA_TEST_REDIS_URL")
    database_url = environ.get("MADEIRA_TEST_DATABASE_URL")
    if redis_url and database_url:
        yield Servers(redis_url, database_url, redis_given=True)
        return
    directory = Path(tempfile.mkdtemp(prefix="madeira-test-"))
    try:
        with Embedded.start(directory, durable=False) as embedded:
            yield Servers(
                redis_url or embedded.servers.redis_url,
                database_url or embedded.servers.database_url,
                redis_given=redis_url is not None,
            )
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def sibling(url: str, database: str) -> str:
    """The URL of another database on the same server."""
    return urlunsplit(urlsplit(url)._replace(path=f"/{database}"))


@contextmanager
def template_database(admin_url: str) -> Iterator[str]:
    """A migrated database to clone from; nobody can connect to it, so that cloning never finds it in use."""
    name = f"madeira_template_{secrets.token_hex(4)}"
    with psycopg.connect(admin_url, autocommit=True) as admin:
        admin.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
        try:
            migrate(sibling(admin_url, name))
            admin.execute(sql.SQL("ALTER DATABASE {} ALLOW_CONNECTIONS false").format(sql.Identifier(name)))
            yield name
        finally:
            admin.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))


@contextmanager
def cloned_database(admin_url: str, template: str) -> Iterator[str]:
    """The URL of a fresh copy of the template, dropped at the end whoever is still connected."""
    name = f"madeira_test_{secrets.token_hex(6)}"
    with psycopg.connect(admin_url, autocommit=True) as admin:
        # Copying files takes half the time of copying through the log when nothing is synced.
        create = sql.SQL("CREATE DATABASE {} TEMPLATE {} STRATEGY file_copy")
        admin.execute(create.format(sql.Identifier(name), sql.Identifier(template)))
        try:
            yield sibling(admin_url, name)
        finally:
            admin.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))
