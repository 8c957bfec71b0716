"""What operators see of live events on their way, of those that go nowhere, and of conflicts; on real servers."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Iterator
from dataclasses import replace
from decimal import Decimal
from pathlib import Path

import msgspec
import psycopg
import pytest
from click.testing import CliRunner, Result

from madeira.cli import main
from pipelines.feed import Feeder
from pipelines.record import Recorder
from pipelines.route import Route
from pipelines.router import Router
from sinks.pool import open_pool
from streams.inbound import Inbound
from streams.transit import Transit
from tests.pipelines.live import MOMENT, TO_KEY, Live, event
from tests.pipelines.night import Night, partner

JOBS = """
[sources.shop]
key_env = ["SHOP_KEY"]
durability = "redis"

[[routes]]
name = "to-key"
source = "shop"
to = ["{routing_key}"]

[partners.AB]
endpoint = "https://ab.example/payments"
qps = 50
"""


class Shop:
    """`madeira` with a source, a route and the partner AB."""

    def __init__(self, folder: Path, database_url: str, redis_url: str, key_prefix: str) -> None:
        self.config = folder / "jobs.toml"
        self.config.write_text(JOBS)
        self.urls = (database_url, redis_url, key_prefix)
        self.environ = {
            "MADEIRA_CONFIG": str(self.config),
            "MADEIRA_DATABASE_URL": database_url,
            "MADEIRA_REDIS_URL": redis_url,
            "MADEIRA_KEY_PREFIX": key_prefix,
            "SHOP_KEY": "a-secret-of-thirty-two-characters",
        }

    def __call__(self, *arguments: str) -> Result:
        """One command."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("MADEIRA_CONFIG", str(self.config))
            return CliRunner().invoke(main, list(arguments), env=self.environ)

    def post(self, *events: Inbound, by: Route | None = TO_KEY, seen: bool = False) -> None:
        """Accepted, and routed unless `by` is None; `seen`: Redis has forgotten the ids before."""
        asyncio.run(self._post(events, by, seen))

    async def _post(self, events: tuple[Inbound, ...], by: Route | None, seen: bool) -> None:
        pool, transit = await open_pool(self.urls[0], name="shop"), Transit.open(self.urls[1], self.urls[2])
        partners = {"AB": partner("AB")}
        night = Night(
            pool, transit, partners, Recorder(pool, transit, partners), Feeder(pool, transit, partners)
        )
        try:
            routes = [] if by is None else [by]
            post = Live(night, Router(pool, transit, partners, routes))
            if seen:
                for one in events:
                    await transit.redis.delete(
                        transit.keys.inbound_of(one.source, one.event_id).seen(one.source, one.event_id)
                    )
            await post.enqueue(*events)
            if by is not None:
                await post.router.step(0, block=MOMENT)
                await post.routed(0)
        finally:
            await pool.close()
            await transit.close()

    def act(self, statement: str) -> None:
        """Something that happens to the record."""
        with psycopg.connect(self.urls[0], autocommit=True) as connection:
            connection.execute(statement.encode())


@pytest.fixture
def shop(tmp_path: Path, database_url: str, redis_url: str, key_prefix: str) -> Iterator[Shop]:
    """Nothing was posted."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield Shop(tmp_path, database_url, redis_url, key_prefix)
    root.handlers[:] = handlers
    root.setLevel(level)


def test_trace_of_an_event_that_only_redis_has(shop: Shop) -> None:
    """Accepted and not yet routed: its mark says so, with and without the source's name."""
    shop.post(event("1"), by=None)
    for name in ("1", "shop:1"):
        result = shop("trace", name)
        assert (result.exit_code, "shop:1: waiting" in result.output) == (0, True), result.output
        assert event("1").trace_id in result.output
    [found] = json.loads(shop("trace", "1", "--json").output)
    assert (found["known_to"], found["partner"], found["status"]) == ("redis", None, "waiting")
    assert shop("trace", "2").exit_code == 1


def test_trace_of_a_routed_event(shop: Shop) -> None:
    """Its address, whether a route made its body, and how often the id came again with another one."""
    route = replace(TO_KEY, body="n", target_uri="https://bank.example/{event_id}")
    shop.post(event("1"), by=route)
    shop.post(event("1", body=b"[]"), seen=True)
    result = shop("trace", "1")
    for part in ("shop:1 → AB: pending", "address: https://bank.example/1", "made by a route", "1 times"):
        assert part in result.output
    assert "next attempt" not in result.output
    [found] = json.loads(shop("trace", "1", "--json").output)
    assert (found["reshaped"], found["conflicts"], found["known_to"]) == (True, 1, "record")


def test_unroutable(shop: Shop) -> None:
    """Listed with the reason and sums, told by status; today's routes are tried without and with effect."""
    assert (shop("unroutable", "list").exit_code, shop("unroutable", "route").exit_code) == (0, 0)
    one = msgspec.structs.replace(event("1", "ZZ"), amount=Decimal("10.50"), currency="CZK")
    shop.post(one, event("2", "ZZ"), event("3", "YY"))
    traced = shop("trace", "1")
    assert (traced.exit_code, "shop:1: unroutable" in traced.output) == (0, True), traced.output
    assert "no partner ZZ in tenant default" in traced.output
    listed = shop("unroutable", "list", "--limit", "2")
    assert listed.exit_code == 1
    for part in ("shop:1", "10.50 CZK", "no partner YY in tenant default", "1 more: --limit 3"):
        assert part in listed.output
    found = json.loads(shop("unroutable", "list", "--json").output)
    assert (found["total"], [row["event_id"] for row in found["events"]]) == (3, ["1", "2", "3"])
    status = shop("status")
    assert "3 live events found no partner" in status.output
    assert status.exit_code == 1

    shop.config.write_text(JOBS + '[partners.ZZ]\nendpoint = "https://zz.example/"\nqps = 1\n')
    dry = shop("unroutable", "route", "--dry-run")
    assert (dry.exit_code, "2 of 3 events would find all their partners" in dry.output) == (1, True), (
        dry.output
    )
    assert json.loads(shop("unroutable", "list", "--json").output)["total"] == 3
    assert json.loads(shop("unroutable", "route", "--json").output) == {
        "dry_run": False,
        "events": 3,
        "routed": 2,
        "unroutable": 1,
    }
    assert "shop:2 → ZZ: pending" in shop("trace", "2").output
    assert json.loads(shop("unroutable", "list", "--json").output)["total"] == 1


def test_conflicts(shop: Shop) -> None:
    """Listed until somebody settles them; both bodies are shown, and the bytes stay."""
    assert shop("conflicts", "list").exit_code == 0
    shop.post(event("1", body=b'{"first":1}'))
    shop.post(event("1", body=b'{"again":\xff}'), seen=True)
    listed = shop("conflicts", "list")
    assert (listed.exit_code, "shop:1" in listed.output) == (1, True), listed.output
    [row] = json.loads(shop("conflicts", "list", "--json").output)
    shown = shop("conflicts", "show", str(row["id"]))
    assert shown.exit_code == 0
    for part in ('{"first":1}', '{"again":\\xff}', "never sent"):
        assert part in shown.output
    assert "1 ids came again with another body" in shop("status").output
    assert shop("conflicts", "settle", str(row["id"]), "--why", "sender told").exit_code == 0
    assert shop("conflicts", "settle", str(row["id"])).exit_code == 1
    assert shop("conflicts", "list").exit_code == 0
    assert "shop:1" in shop("conflicts", "list", "--all").output
    assert "came again" not in shop("status").output
    assert shop("conflicts", "show", "999").exit_code == 1


def test_status_counts_live_beside_batch(shop: Shop) -> None:
    """What waits for a router, and what waits for the partner."""
    shop.post(event("1"))
    shop.post(event("2"), by=None)
    found = json.loads(shop("status", "--json").output)
    assert found["inbound"]["waiting"] == 1
    [ab] = found["partners"]
    assert (ab["recorded"]["pending"], ab["recorded"]["live"]) == (1, 1)
    assert "1 live events wait for a router" in shop("status").output
