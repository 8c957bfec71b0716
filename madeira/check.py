"""`madeira check`: is everything as a night of payments needs it? Says what is not, and how to mend it.

Mistakes in jobs.toml are told by `madeira.settings.load` already; here come the things that are legal and
still likely wrong, and the two servers.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from dataclasses import dataclass

import psycopg
from sqlalchemy.exc import SQLAlchemyError

from madeira.routes import idle_sources, shadowed
from madeira.settings import Settings
from pipelines.job import Job
from sinks.migrate import newest, require_current
from sinks.partner import Partner
from sinks.statement import statement
from streams.errors import SchemaTooOld, StoreUnavailable
from streams.server import ServerFacts, server_facts
from streams.transit import connect

OLDEST_REDIS = (7, 0, 0)
OLDEST_POSTGRES = 140000
_CONNECT_TIMEOUT_S = 5
_MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Report:
    """Sentences. Errors must be mended before anything is sent; warnings are worth a look."""

    errors: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    facts: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether nothing must be mended."""
        return not self.errors

    def __add__(self, other: Report) -> Report:
        return Report(self.errors + other.errors, self.warnings + other.warnings, self.facts + other.facts)


def check(settings: Settings, *, database_url: str | None, redis_url: str | None) -> Report:
    """Look at the settings and at each server whose URL is given; None leaves that server out."""
    report = configuration(settings)
    if database_url is not None:
        report += database(database_url)
    if redis_url is not None:
        report += transit(redis_url)
    return report


def configuration(settings: Settings) -> Report:
    """What the file says, looked at without any server."""
    warnings = list(settings.warnings)
    if not settings.jobs and not settings.sources:
        warnings.append(
            f"{settings.config} has no job and no source, so nothing is ever sent: write [[jobs]] or [sources.…]"
        )
    for scheduled in settings.jobs:
        warnings += _unnamed_columns(scheduled.job)
    for partner in settings.partners.values():
        warnings += _partner_warnings(partner)
    warnings += _route_warnings(settings)
    rate = sum(partner.qps for partner in settings.partners.values())
    jobs, partners = _counted(len(settings.jobs), "job"), _counted(len(settings.partners), "partner")
    fact = f"{settings.config}: {jobs}, {partners}, {rate} sends a second agreed over all"
    facts = [fact]
    if settings.sources or settings.routes:
        sources, routes = (
            _counted(len(settings.sources), "source"),
            _counted(len(settings.routes), "route"),
        )
        facts.append(f"live events: {sources}, {routes}")
    return Report(warnings=tuple(warnings), facts=tuple(facts))


def database(url: str) -> Report:
    """The record: reachable, new enough, at our schema, and keeping what it commits."""
    try:
        with psycopg.connect(url, connect_timeout=_CONNECT_TIMEOUT_S, client_encoding="UTF8") as connection:
            row = connection.execute(statement("server/facts")).fetchone()
        assert row is not None
        number, version, encoding, replica, fsync, commit = row
        errors = tuple(_database_errors(number=number, version=version, encoding=encoding, replica=replica))
        # Not asked of a wrong server: what reads the schema trips over it.
        errors = errors or _outdated(url)
    except (psycopg.Error, SQLAlchemyError) as error:
        said = (str(error).strip().splitlines() or [type(error).__name__])[0]
        return Report(
            errors=(f"PostgreSQL does not answer ({said}): start it, or correct MADEIRA_DATABASE_URL",)
        )
    warnings = tuple(
        f"PostgreSQL: {name} is off, so a power cut can lose what was committed: set {name} = on"
        for name, value in (("fsync", fsync), ("synchronous_commit", commit))
        if value == "off"
    )
    return Report(errors, warnings, (f"PostgreSQL {version}, schema {newest()} is what this program needs",))


def _outdated(url: str) -> tuple[str, ...]:
    try:
        require_current(url)
    except (SchemaTooOld, StoreUnavailable) as error:
        return (f"PostgreSQL: {error}",)
    return ()


def transit(url: str) -> Report:
    """The transit: reachable, new enough, evicting nothing, and writing down what it takes."""
    try:
        facts = asyncio.run(_asked(url))
    except StoreUnavailable as error:
        return Report(errors=(f"{error}: start it, or correct MADEIRA_REDIS_URL",))
    return judged(facts)


def judged(facts: ServerFacts) -> Report:
    """What a server's facts mean. Pure."""
    limit = f"{facts.memory_limit // _MIB} MiB" if facts.memory_limit else "no limit"
    fact = f"{facts.product}, {facts.memory_used // _MIB} MiB used, {limit}"
    return Report(tuple(_transit_errors(facts)), tuple(_transit_warnings(facts)), (fact,))


async def _asked(url: str) -> ServerFacts:
    redis = connect(url, connections=1)
    try:
        return await server_facts(redis)
    finally:
        await redis.aclose()


def _database_errors(*, number: int, version: str, encoding: str, replica: bool) -> Iterator[str]:
    if number < OLDEST_POSTGRES:
        yield f"PostgreSQL is {version}: use {OLDEST_POSTGRES // 10000} or newer"
    if encoding != "UTF8":
        yield f"PostgreSQL: the database's encoding is {encoding}: create one with ENCODING 'UTF8'"
    if replica:
        yield "PostgreSQL is a standby, which takes no writes: name the primary in MADEIRA_DATABASE_URL"


def _transit_errors(facts: ServerFacts) -> Iterator[str]:
    if facts.version < OLDEST_REDIS:
        yield f"Redis: {facts.product} is too old: use Redis 7.0 or newer, or Valkey"
    if facts.eviction != "noeviction":
        yield (
            f"Redis: maxmemory-policy is {facts.eviction or 'not told'}, which drops waiting payments "
            "when memory is full: set maxmemory-policy noeviction"
        )
    if facts.replica:
        yield "Redis is a replica, which takes no writes: name the primary in MADEIRA_REDIS_URL"
    if not facts.aof_healthy:
        yield "Redis: the last write of the AOF failed: make room on its disk, and look into its log"


def _transit_warnings(facts: ServerFacts) -> Iterator[str]:
    if not facts.append_only:
        yield (
            "Redis: appendonly is no, so its restart loses the transit and all of it is fed again: "
            "set appendonly yes and appendfsync everysec"
        )
    elif facts.fsync == "no":
        yield "Redis: appendfsync is no, so a power cut can lose much: set appendfsync everysec"
    if facts.memory_limit and facts.memory_used > facts.memory_limit * 8 // 10:
        yield "Redis: over 80 % of maxmemory is used; when it is full, feeding waits: raise maxmemory"


def _partner_warnings(partner: Partner) -> Iterator[str]:
    if partner.endpoint.startswith("http://") and not partner.allow_private:
        yield f"partners.{partner.name}.endpoint is http, which anybody on the way can read: use https"


def _route_warnings(settings: Settings) -> Iterator[str]:
    if settings.routes and not settings.sources:
        yield "[[routes]] are there but no source, so nobody may post: write [sources.…] with key_env"
    tenants = {source.name: source.tenant for source in settings.sources.values()}
    for name in idle_sources(tenants, settings.routes):
        yield (
            f"sources.{name}: no route takes its events, so all are unroutable: "
            f'write [[routes]] with source = "{name}"'
        )
    for route, partner, earlier in shadowed(settings.routes):
        yield (
            f"route {route.name} never sends to {partner}: route {earlier.name} before it takes the same events "
            "there: remove one, or put the narrower one first"
        )


def _unnamed_columns(job: Job) -> Iterator[str]:
    """Columns that the query does not seem to have. A guess: only the source knows what `*` gives."""
    if "*" in re.sub(r"count\s*\(\s*\*\s*\)", "", job.query, flags=re.IGNORECASE):
        return
    words = {word.lower() for word in re.findall(r"[A-Za-z_][A-Za-z0-9_$]*", job.query)}
    wanted = [("event_id", column) for column in job.event_id if column != "business_date"]
    if job.partner_is_column:
        wanted.append(("partner", job.partner))
    if job.currency is not None and job.currency_is_column:
        wanted.append(("currency", job.currency))
    wanted += [
        (key, column) for key, column in (("amount", job.amount), ("order_key", job.order_key)) if column
    ]
    for key, column in wanted:
        if column.lower() not in words:
            also = " and no partner is called that" if key == "partner" else ""
            yield (
                f'jobs.{job.id}.{key} is "{column}", but {job.query_file} names no such column{also}: '
                "correct one of them"
            )


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
