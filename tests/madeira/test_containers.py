"""The third way to servers: containers, where MADEIRA_TEST_CONTAINERS=1 and a Docker engine answers."""

from __future__ import annotations

import os
import warnings

import psycopg
import pytest
import redis

from sinks.migrate import current, migrate, newest


def _why_not() -> str | None:
    if os.environ.get("MADEIRA_TEST_CONTAINERS") != "1":
        return "MADEIRA_TEST_CONTAINERS is not 1"
    import docker

    try:
        docker.from_env().ping()
    except docker.errors.DockerException as error:
        return f"no Docker engine answers: {error}"
    return None


def test_the_schema_and_redis_work_in_containers() -> None:
    """The versions of compose.yaml take the schema and a consumer group."""
    if reason := _why_not():
        pytest.skip(reason)
    with warnings.catch_warnings():
        # testcontainers' own deprecations are not ours to mend.
        warnings.simplefilter("ignore", DeprecationWarning)
        from testcontainers.postgres import PostgresContainer
        from testcontainers.redis import RedisContainer

        postgres, transit = PostgresContainer("postgres:16", driver=None), RedisContainer("redis:7.2")
    with postgres, transit:
        url = postgres.get_connection_url()
        migrate(url)
        assert current(url) == newest()
        with psycopg.connect(url) as connection:
            assert connection.execute("SELECT 1").fetchone() == (1,)
        port = int(transit.get_exposed_port(6379))
        with redis.Redis(host=transit.get_container_host_ip(), port=port) as client:
            assert client.xgroup_create("lane", "senders", id="0", mkstream=True)
