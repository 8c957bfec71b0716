"""Which servers are meant, and whether their schema fits."""

from __future__ import annotations

from pathlib import Path

import psycopg
import pytest

from madeira.settings import Settings, load
from madeira.wiring import servers
from streams.errors import SchemaTooOld


def settings(folder: Path, **environ: str) -> Settings:
    """A configuration with one partner and this environment."""
    config = folder / "jobs.toml"
    config.write_text('[partners.AB]\nendpoint = "https://ab.example/"\nqps = 5\n')
    return load({"MADEIRA_CONFIG": str(config), "MADEIRA_VAR": str(folder / "var"), **environ})


def test_given_servers_are_used(tmp_path: Path, database_url: str, redis_url: str) -> None:
    """Both as they are, and nothing is started beside them."""
    with servers(settings(tmp_path, MADEIRA_DATABASE_URL=database_url, MADEIRA_REDIS_URL=redis_url)) as where:
        assert (where.database_url, where.redis_url, where.embedded) == (database_url, redis_url, None)
    assert not (tmp_path / "var").exists()


def test_an_old_schema_is_refused(tmp_path: Path, database_url: str, redis_url: str) -> None:
    """On a given server nobody migrates by the way; who only looks may pass."""
    with psycopg.connect(database_url, autocommit=True) as connection:
        connection.execute("DELETE FROM alembic_version")
    given = settings(tmp_path, MADEIRA_DATABASE_URL=database_url, MADEIRA_REDIS_URL=redis_url)
    with pytest.raises(SchemaTooOld, match="madeira migrate"), servers(given):
        pytest.fail("it was let in")
    with servers(given, check_schema=False) as where:
        assert where.database_url == database_url


@pytest.mark.slow
def test_what_is_not_given_is_embedded(tmp_path: Path, redis_url: str) -> None:
    """A private database is started, migrated and let go; the Redis that was given is used beside it."""
    with servers(settings(tmp_path, MADEIRA_REDIS_URL=redis_url)) as where:
        assert where.redis_url == redis_url
        assert where.embedded is not None
        with psycopg.connect(where.database_url) as connection:
            assert connection.execute("SELECT number FROM generation").fetchall() == [(0,)]
        url = where.database_url
    with pytest.raises(psycopg.OperationalError):
        psycopg.connect(url, connect_timeout=2).close()
