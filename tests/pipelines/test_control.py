"""Pauses: recorded first, then in Redis by whoever comes."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from pipelines.control import Control
from streams.errors import StaleGeneration
from streams.gauges import gauge
from streams.scripts import PaceState
from tests.pipelines.night import Night, night


@pytest.fixture
async def stores(database_url: str, redis_url: str, key_prefix: str) -> AsyncIterator[Night]:
    """Two partners in generation 1."""
    async with night(database_url, redis_url, key_prefix) as found:
        yield found


def control(stores: Night) -> Control:
    """One process's view of it."""
    return Control(stores.pool, stores.transit, stores.partners)


async def paused(stores: Night) -> list[str]:
    """The partners that Redis has as paused."""
    return [name for name in stores.partners if (await gauge(stores.transit, stores.keys(name))).paused]


async def test_recorded_first_and_applied_by_another(stores: Night) -> None:
    """The intent is a row; any process carries it to Redis, where it stops the next take."""
    await control(stores).set_paused(["AB"], paused=True, who="ops", why="they asked")
    assert await paused(stores) == []
    assert await control(stores).apply(1) == 1
    assert await paused(stores) == ["AB"]
    await stores.release(1)
    await stores.feeder.step(1)
    assert await stores.take(1) == ()

    await control(stores).set_paused(["AB", "CD"], paused=False, who="ops", why="")
    assert await control(stores).apply(1) == 0
    assert await paused(stores) == []
    assert len(await stores.take(1)) == 1


async def test_each_change_is_audited(stores: Night) -> None:
    """Who, what, whom and why, a row for every partner."""
    await control(stores).set_paused(["AB", "CD"], paused=True, who="ops", why="window")
    await control(stores).set_paused(["CD"], paused=False, who="dev", why="over")
    assert await stores.sql("SELECT who, action, target, why FROM audit ORDER BY id") == [
        ("ops", "pause", "AB", "window"),
        ("ops", "pause", "CD", "window"),
        ("dev", "resume", "CD", "over"),
    ]
    assert await stores.sql("SELECT partner, paused, who FROM partner_control ORDER BY partner") == [
        ("AB", True, "ops"),
        ("CD", False, "dev"),
    ]


async def test_another_generation_is_left_alone(stores: Night) -> None:
    """While recovery is at work nothing is applied; the intent stays and is applied afterwards."""
    await control(stores).set_paused(["AB"], paused=True, who="ops", why="")
    await stores.close(2)
    with pytest.raises(StaleGeneration):
        await control(stores).apply(1)
    await stores.open(3)
    assert await control(stores).apply(3) == 1
    assert await paused(stores) == ["AB"]


async def test_a_partner_that_is_no_longer_configured_is_passed_over(stores: Night) -> None:
    """Its intent stays in the record and stops nobody else's."""
    await control(stores).set_paused(["AA", "CD"], paused=True, who="ops", why="")
    await control(stores).apply(1)
    assert await paused(stores) == ["CD"]
    take = await stores.transit.scripts.take(
        stores.keys("CD"), generation=1, worker="w", limit=1, horizon=stores.partners["CD"].lateness
    )
    assert take.state is PaceState.PAUSED
