"""Brings the record's schema up to date, and says whether it is."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Engine, create_engine, text
from sqlalchemy.exc import OperationalError

from streams.errors import SchemaTooOld, StoreUnavailable

_LOCK = 0x6D61646569726100  # one migration at a time; any number that nobody else uses


def engine_for(database_url: str) -> Engine:
    """A SQLAlchemy engine over psycopg 3 for a `postgresql://` URL."""
    scheme, separator, rest = database_url.partition("://")
    if scheme in {"postgresql", "postgres"}:
        scheme = "postgresql+psycopg"
    return create_engine(f"{scheme}{separator}{rest}")


def _config() -> Config:
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations"))
    return config


def newest() -> str:
    """The revision that this program was written for."""
    head = ScriptDirectory.from_config(_config()).get_current_head()
    assert head is not None
    return head


@contextmanager
def _engine(database_url: str) -> Iterator[Engine]:
    """An engine for one use. Raises `StoreUnavailable` when PostgreSQL does not answer."""
    engine = engine_for(database_url)
    try:
        yield engine
    except OperationalError as error:
        said = str(error.orig).strip().partition("\n")[0]
        raise StoreUnavailable(f"PostgreSQL does not answer: {said}") from error
    finally:
        engine.dispose()


def current(database_url: str) -> str | None:
    """The revision that the database is at, None for an empty one. Raises `StoreUnavailable`."""
    with _engine(database_url) as engine, engine.connect() as connection:
        return MigrationContext.configure(connection).get_current_revision()


def migrate(database_url: str) -> str:
    """Run every missing revision; returns the one reached. Safe to call from several processes at once.

    Raises `StoreUnavailable`.
    """
    with _engine(database_url) as engine, engine.begin() as connection:
        connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _LOCK})
        config = _config()
        config.attributes["connection"] = connection
        command.upgrade(config, "head")
    return newest()


def require_current(database_url: str) -> None:
    """Raises `SchemaTooOld`, naming the command, unless the database is at `newest()`; and `StoreUnavailable`."""
    found, wanted = current(database_url), newest()
    if found != wanted:
        raise SchemaTooOld(
            f"the database is at schema {found or 'none'}, this program needs {wanted}: run `madeira migrate`"
        )
