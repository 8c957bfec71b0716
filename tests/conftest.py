"""Fixtures on real servers. Each test has a database and a key prefix of its own, so tests never meet."""

from __future__ import annotations

import os
import secrets
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import redis as redis_sync
from redis.asyncio import Redis

from madeira.embedded_server import awaited_pid, free_port
from madeira.embedded_valkey import PrivateValkey
from tests.servers import Servers, cloned_database, servers, template_database


@pytest.fixture(scope="session")
def test_servers() -> Iterator[Servers]:
    """The session's Redis (or Valkey) and PostgreSQL."""
    with servers(os.environ) as found:
        yield found


@pytest.fixture(scope="session")
def database_template(test_servers: Servers) -> Iterator[str]:
    """Name of the migrated database that tests get copies of."""
    with template_database(test_servers.database_url) as name:
        yield name


@pytest.fixture
def database_url(test_servers: Servers, database_template: str) -> Iterator[str]:
    """A migrated, empty database of this test's own."""
    with cloned_database(test_servers.database_url, database_template) as url:
        yield url


@pytest.fixture
def redis_url(test_servers: Servers) -> str:
    """The session's server: touch only keys below ``key_prefix``; to break one take ``private_valkey``."""
    return test_servers.redis_url


@pytest.fixture
def key_prefix(test_servers: Servers) -> Iterator[str]:
    """The prefix of this test's keys; on a given server what is below it is deleted afterwards."""
    prefix = f"test-{secrets.token_hex(6)}"
    yield prefix
    if test_servers.redis_given:
        with redis_sync.Redis.from_url(test_servers.redis_url) as server:
            for key in server.scan_iter(match=f"{prefix}:*", count=1000):
                server.delete(key)


@pytest.fixture
async def redis(redis_url: str) -> AsyncIterator[Redis]:
    """A plain client that answers in bytes."""
    async with Redis.from_url(redis_url) as client:
        yield client


@pytest.fixture
def private_valkey(tmp_path: Path) -> Iterator[PrivateValkey]:
    """A durable Valkey of this test's own, to flush, kill (``pid()``), ``start()`` again at its ``url``.

    After a kill: ``await_end(server.home)``, ``server.start()``, ``awaited_pid(server)``.
    """
    server = PrivateValkey(tmp_path / "valkey", free_port(), secrets.token_hex(16))
    server.start()
    awaited_pid(server)
    yield server
    server.stop()
