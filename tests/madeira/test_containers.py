"""The third way to servers: containers, where MADEIRA_TEST_CONTAINERS=1 and a Docker engine answers."""

from __future__ import annotations

import gc
import os
import warnings
from collections.abc import Iterator

import psycopg
import pytest
import redis

from sinks.migrate import current, migrate, newest


@pytest.fixture
def docker_engine() -> Iterator[None]:
    """Skips, with the reason, where containers are not wanted or no engine answers."""
    if os.environ.get("MADEIRA_TEST_CONTAINERS") != "1":
        pytest.skip("MADEIRA_TEST_CONTAINERS is not 1")
    import docker
    from docker.errors import DockerException

    with warnings.catch_warnings():
        # The client leaves sockets open, also when nobody answers: collected here, not in another test.
        warnings.simplefilter("ignore")
        reason = None
        try:
            docker.from_env().ping()
        except DockerException as error:
            reason = str(error)
        if reason is None:
            yield
        gc.collect()
    if reason is not None:
        pytest.skip(f"no Docker engine answers: {reason}")


def test_the_schema_and_redis_work_in_containers(docker_engine: None) -> None:
    """The versions of compose.yaml take the schema and a consumer group."""
    from testcontainers.postgres import PostgresContainer
    from testcontainers.redis import RedisContainer

    with PostgresContainer("postgres:16", driver=None) as postgres, RedisContainer("redis:7.2") as transit:
        url = postgres.get_connection_url()
        migrate(url)
        assert current(url) == newest()
        with psycopg.connect(url) as connection:
            assert connection.execute("SELECT 1").fetchone() == (1,)
        port = int(transit.get_exposed_port(6379))
        with redis.Redis(host=transit.get_container_host_ip(), port=port) as client:
            assert client.xgroup_create("lane", "senders", id="0", mkstream=True)
