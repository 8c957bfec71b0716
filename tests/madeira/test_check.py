"""What `madeira check` says of settings and of real servers, right and wrong ones."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import psycopg
import pytest
from redis import Redis

from madeira.check import check, configuration, database, judged, transit
from madeira.embedded_server import free_port
from madeira.embedded_valkey import PrivateValkey
from madeira.settings import Settings, load
from pipelines.job import Job
from pipelines.route import Route
from streams.server import ServerFacts

ROOT = Path(__file__).parents[2]
FINE = ServerFacts(
    product="Redis 7.2.4",
    version=(7, 2, 4),
    eviction="noeviction",
    memory_used=100 * 1024 * 1024,
    memory_limit=0,
    append_only=True,
    aof_healthy=True,
    fsync="everysec",
    replica=False,
)


@pytest.fixture
def shipped() -> Settings:
    """The settings of the shipped jobs.toml with its secrets set."""
    return load(
        {"MADEIRA_CONFIG": str(ROOT / "jobs.toml"), "BANKS_KEY": "k", "ACCOUNTING_DSN": "x", "SHOP_KEY": "k"}
    )


def test_the_shipped_configuration_on_good_servers_is_fine(
    shipped: Settings, database_url: str, redis_url: str
) -> None:
    """No error and no warning about the file; facts about all three."""
    report = check(shipped, database_url=database_url, redis_url=redis_url)
    assert report.errors == ()
    assert report.ok
    assert "1 job, 13 partners, 470 sends a second" in report.facts[0]
    assert report.facts[1] == "live events: 1 source, 1 route"
    assert report.facts[2].startswith("PostgreSQL ")
    assert "MiB used" in report.facts[3]
    assert configuration(shipped).warnings == ()


def test_secrets_that_are_not_set_are_warnings() -> None:
    """The report stays fine."""
    report = configuration(load({"MADEIRA_CONFIG": str(ROOT / "jobs.toml")}))
    assert report.ok
    assert [line.split(" ")[0] for line in report.warnings] == ["BANKS_KEY", "ACCOUNTING_DSN", "SHOP_KEY"]


def test_columns_that_the_query_does_not_name_are_warnings(shipped: Settings) -> None:
    """Only a guess, so no error; a query with a star may have any column, a counted one has not."""
    (scheduled,) = shipped.jobs
    job = scheduled.job

    def said(job: Job) -> list[str]:
        changed = replace(scheduled, job=job)
        return [line.split(" ")[0] for line in configuration(replace(shipped, jobs=(changed,))).warnings]

    assert said(replace(job, amount="amuont", order_key="account")) == [
        "jobs.payment-orders.amount",
        "jobs.payment-orders.order_key",
    ]
    assert said(replace(job, partner="bank", query="SELECT order_id, amount, count(*) FROM t")) == [
        "jobs.payment-orders.partner"
    ]
    assert said(replace(job, partner="bank", query="SELECT * FROM t")) == []


def test_a_file_without_a_job_and_a_source_is_a_warning(shipped: Settings) -> None:
    """It is legal, and hardly meant; either of them is enough."""
    empty = replace(shipped, jobs=(), sources={}, routes=())
    assert "has no job and no source" in configuration(empty).warnings[0]
    assert configuration(replace(shipped, jobs=())).warnings == ()
    assert configuration(replace(shipped, sources={}, routes=())).warnings == ()


@pytest.mark.parametrize(
    ("routes", "said"),
    [
        ((), ["sources.shop:"]),
        ((Route(name="a", to=("AB",), sources=("other",)),), ["sources.shop:"]),
        ((Route(name="a", to=("AB",), tenant="north"),), ["sources.shop:"]),
        ((Route(name="a", to=("AB",)),), []),
        ((Route(name="a", to=("AB",), sources=("shop",), event_types=("x",)),), []),
    ],
)
def test_a_source_that_no_route_takes_is_a_warning(
    shipped: Settings, routes: tuple[Route, ...], said: list[str]
) -> None:
    """Whatever it posts would be unroutable."""
    report = configuration(replace(shipped, routes=routes))
    assert [line.split(" ")[0] for line in report.warnings] == said


def test_routes_without_a_source_are_a_warning(shipped: Settings) -> None:
    """Nobody may post what they would take."""
    assert "no source" in configuration(replace(shipped, sources={})).warnings[0]


FIRST = Route(name="a", to=("AB", "CD"), event_types=("payment.*",))


@pytest.mark.parametrize(
    ("later", "said"),
    [
        (replace(FIRST, name="b"), ["AB", "CD"]),
        (replace(FIRST, name="b", to=("EF", "CD")), ["CD"]),
        (replace(FIRST, name="b", to=("EF",)), []),
        (replace(FIRST, name="b", sources=("shop",)), ["AB", "CD"]),
        (replace(FIRST, name="b", tags=(("region", "sh"),), routing_keys=("x",)), ["AB", "CD"]),
        (replace(FIRST, name="b", event_types=()), []),
        (replace(FIRST, name="b", event_types=("payment.*", "refund")), []),
        (replace(FIRST, name="b", tenant="north"), []),
    ],
)
def test_a_route_that_an_earlier_one_leaves_nothing_to_is_a_warning(
    shipped: Settings, later: Route, said: list[str]
) -> None:
    """The first that names a partner decides, so the later one never does for the same or fewer events."""
    report = configuration(replace(shipped, routes=(FIRST, later)))
    assert [line.split(":")[0] for line in report.warnings] == [
        f"route b never sends to {partner}" for partner in said
    ]


def test_http_to_the_world_is_a_warning(shipped: Settings) -> None:
    """Inside one's own network it is one's own affair."""
    partner = replace(shipped.partners["AB"], endpoint="http://ab.example/", allow_private=False)
    report = configuration(replace(shipped, partners={"AB": partner}))
    assert report.warnings == ("partners.AB.endpoint is http, which anybody on the way can read: use https",)


def test_a_schema_that_is_not_current_names_the_command(database_url: str) -> None:
    """As after an upgrade of the program."""
    with psycopg.connect(database_url) as connection:
        connection.execute("DROP TABLE alembic_version")
    (error,) = database(database_url).errors
    assert "run `madeira migrate`" in error


def test_a_database_that_is_not_utf8_is_an_error(database_url: str) -> None:
    """It could hold bytes that no partner can read."""
    name = "sql_ascii_of_a_check"
    with psycopg.connect(database_url, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name} ENCODING 'SQL_ASCII' TEMPLATE template0 LOCALE 'C'")
        try:
            at = connection.info
            ascii_url = f"postgresql://{at.user}:{at.password}@{at.host}:{at.port}/{name}"
            (error,) = database(ascii_url).errors
        finally:
            connection.execute(f"DROP DATABASE {name} WITH (FORCE)")
    assert "encoding is SQL_ASCII: create one with ENCODING 'UTF8'" in error


def test_a_database_that_is_away_is_one_error_without_a_secret() -> None:
    """It says what to do and shows no password."""
    url = f"postgresql://u:hunter2@127.0.0.1:{free_port()}/d"
    (error,) = database(url).errors
    assert "PostgreSQL does not answer" in error
    assert "MADEIRA_DATABASE_URL" in error
    assert "hunter2" not in error


def test_a_redis_that_is_away_is_one_error_without_a_secret() -> None:
    """The same for the transit."""
    (error,) = transit(f"redis://:hunter2@127.0.0.1:{free_port()}/0").errors
    assert "Redis does not answer" in error
    assert "MADEIRA_REDIS_URL" in error
    assert "hunter2" not in error


def test_a_wrong_password_is_told(private_valkey: PrivateValkey) -> None:
    """Not as a crash."""
    (error,) = transit(f"redis://:wrong@127.0.0.1:{private_valkey.port}/0").errors
    assert "MADEIRA_REDIS_URL" in error


def test_a_real_server_set_wrongly_is_told(private_valkey: PrivateValkey) -> None:
    """What CONFIG says of eviction and AOF arrives here."""
    assert transit(private_valkey.url).errors == ()
    assert transit(private_valkey.url).warnings == ()
    with Redis.from_url(private_valkey.url) as server:
        server.config_set("maxmemory-policy", "allkeys-lru")
        server.config_set("appendfsync", "no")
        report = transit(private_valkey.url)
        assert "maxmemory-policy is allkeys-lru" in report.errors[0]
        assert "set maxmemory-policy noeviction" in report.errors[0]
        assert "appendfsync is no" in report.warnings[0]
        server.config_set("appendonly", "no")
    assert "appendonly is no" in transit(private_valkey.url).warnings[0]


@pytest.mark.parametrize(
    ("facts", "errors", "warnings"),
    [
        (FINE, [], []),
        (replace(FINE, product="Redis 6.2.1", version=(6, 2, 1)), ["Redis 6.2.1 is too old"], []),
        (replace(FINE, eviction="volatile-ttl"), ["maxmemory-policy is volatile-ttl"], []),
        (replace(FINE, replica=True), ["name the primary in MADEIRA_REDIS_URL"], []),
        (replace(FINE, aof_healthy=False), ["the last write of the AOF failed"], []),
        (replace(FINE, fsync=None), [], []),
        (replace(FINE, append_only=False, fsync="no"), [], ["appendonly is no"]),
        (replace(FINE, memory_limit=120 * 1024 * 1024), [], ["over 80 % of maxmemory is used"]),
        (replace(FINE, memory_limit=200 * 1024 * 1024), [], []),
    ],
)
def test_what_a_servers_facts_mean(facts: ServerFacts, errors: list[str], warnings: list[str]) -> None:
    """Each with what to do about it."""
    report = judged(facts)
    assert [said in error for said, error in zip(errors, report.errors, strict=True)] == [True] * len(errors)
    assert [said in one for said, one in zip(warnings, report.warnings, strict=True)] == [True] * len(
        warnings
    )
