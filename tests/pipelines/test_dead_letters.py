"""Dead letters in numbers: listed by an index, chosen and moved by a handful of statements however many they are."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, date, datetime

import pytest
from psycopg import AsyncCursor
from psycopg.rows import TupleRow
from psycopg_pool import AsyncConnectionPool

from pipelines.dead_letters import Filter, groups, letters, resolve
from pipelines.replay import Replay
from sinks.pool import borrow, open_pool
from sinks.statement import statement
from streams.delivery import Kind, State
from streams.envelope import Lane
from tests.pipelines.dead import dead, end, fed, replay, taken
from tests.pipelines.night import JOB, Night, night, partner
from tests.pipelines.test_replay import TODAY

MANY = 100_000

FILL = f"""
    INSERT INTO event (source, event_id, event_type, body, body_sha256, trace_id, created_at, batch_id, business_date,
                       amount_minor, currency)
    SELECT 'job', n::text, 'payment', '{{}}', '', 't', now(), 0, '2026-03-02', n, 'CZK'
    FROM generate_series(1, {MANY} * 4) AS n;
    INSERT INTO delivery (event, partner, status, cause, row_number, batch_id, updated_at, attempts)
    SELECT id, 'AB',
           CASE WHEN id % 4 = 0 THEN 'dead' ELSE 'succeeded' END::delivery_status,
           CASE WHEN id % 4 = 0 THEN 'refused' END, id, 0, now(), 1
    FROM event;
    ANALYZE event, delivery
"""


class Counted(AsyncCursor[TupleRow]):
    """Counts what is executed."""

    executed = 0

    async def execute(self, *arguments: object, **more: object) -> Counted:  # type: ignore[override] # passes all on
        """Count it and do it."""
        Counted.executed += 1
        return await super().execute(*arguments, **more)  # type: ignore[arg-type] # as it came


@pytest.fixture
async def full(database_url: str) -> AsyncIterator[AsyncConnectionPool]:
    """A record of 400,000 deliveries, a quarter of them dead, on connections that count statements."""
    pool = await open_pool(database_url, name="test", connections=2)
    try:
        async with borrow(pool) as connection:
            for each in FILL.split(";"):
                await connection.execute(each.encode())
        yield pool
    finally:
        await pool.close()


async def test_the_dead_are_found_by_their_index(full: AsyncConnectionPool) -> None:
    """Whatever is filtered by, nobody reads through what was delivered: the index has nothing but the dead."""
    async with borrow(full) as connection:
        # One in a hundred, as after a bad night: where a quarter is dead, reading everything is right.
        await connection.execute(
            "UPDATE delivery SET status = 'succeeded', cause = NULL WHERE cause IS NOT NULL AND event % 100 <> 0"
        )
        await connection.commit()
        await connection.set_autocommit(True)
        await connection.execute("VACUUM ANALYZE delivery")
        await connection.set_autocommit(False)
        await connection.execute(statement("dead/chosen"))
        for name in ("dead/list", "dead/groups", "dead/pick"):
            for which in (
                Filter(),
                Filter(partner="AB"),
                Filter(partner="AB", cause="refused"),
                Filter(job="job"),
            ):
                parameters = {**which.parameters(), "limit": 100, "by": "cause"}
                cursor = await connection.execute(f"EXPLAIN {statement(name)}".encode(), parameters)
                plan = "\n".join(row[0] for row in await cursor.fetchall())
                assert "delivery_dead" in plan, plan
                assert "Seq Scan on delivery" not in plan, plan


async def test_a_hundred_thousand_are_listed_and_replayed_by_a_few_statements(
    full: AsyncConnectionPool,
) -> None:
    """The list comes in pieces from a cursor of the server; a replay is the same few statements for any number."""
    count, seen = 0, set[str]()
    async for letter in letters(full, Filter()):
        count += 1
        seen.add(letter.event_id)
    assert count == len(seen) == MANY
    assert sum(group.count for group in await groups(full, Filter(), by="partner")) == MANY
    async with borrow(full) as connection:
        connection.cursor_factory = Counted
    async with borrow(full) as connection:
        connection.cursor_factory = Counted
        Counted.executed = 0
    partners = {name: partner(name) for name in ("AB", "CD")}
    done = await Replay(full, partners).replay(Filter(), today=TODAY, who="ann")
    assert done.count == MANY
    assert Counted.executed < 20
    async with borrow(full) as connection:
        cursor = await connection.execute(
            """SELECT count(*), min(row_number), max(row_number), count(*) FILTER (WHERE step <> 1)
               FROM (SELECT row_number, row_number - lag(row_number) OVER (ORDER BY event) AS step
                     FROM delivery WHERE batch_id = %s) AS moved""",
            (done.batch_id,),
        )
        assert await cursor.fetchall() == [(MANY, 1, MANY, 0)]


async def test_a_list_that_is_left_early_gives_its_connection_back(full: AsyncConnectionPool) -> None:
    """Whoever looks at the first few holds nothing afterwards."""
    found = letters(full, Filter())
    first = await anext(found)
    await found.aclose()  # type: ignore[attr-defined] # a generator
    assert first.event_id == "4"
    assert len([one async for one in letters(full, Filter(), limit=3)]) == 3


@pytest.fixture
async def tonight(database_url: str, redis_url: str, key_prefix: str) -> AsyncIterator[Night]:
    """A night on which nothing has happened yet."""
    async with night(database_url, redis_url, key_prefix) as found:
        yield found


async def test_a_replayed_batch_row_is_still_of_its_job_and_lane(tonight: Night) -> None:
    """Filters go by how it came in: a second replay of the same job finds what died again."""
    await dead(tonight, 2)
    await replay(tonight).replay(Filter(), today=TODAY, who="ann")
    await fed(tonight)
    await end(tonight, await taken(tonight), State.DEAD)
    which = Filter(job=JOB, day=date(2026, 3, 2), lane=Lane.BATCH, before=datetime.now(UTC))
    found = [letter async for letter in letters(tonight.pool, which)]
    assert [(letter.attempts, letter.live) for letter in found] == [(2, False)] * 2


async def test_resolve_says_who_and_keeps_the_rest(tonight: Night) -> None:
    """Delivered: a success whose reason is who said so. Not delivered: dead by another cause, nothing flagged."""
    await dead(tonight, 2, outcome=Kind.UNKNOWN)
    one, other = Filter(key=f"{JOB}:1:1"), Filter(key=f"{JOB}:1:2")
    assert await resolve(tonight.pool, one, delivered=True, who="ann", note="statement") == ["AB"]
    assert await resolve(tonight.pool, other, delivered=False, who="bob", note="phone") == ["AB"]
    assert await resolve(tonight.pool, other, delivered=True, who="bob", note="again") == []
    assert await tonight.sql(
        """SELECT status::text, cause, last_error, possible_duplicate
           FROM delivery JOIN event ON event.id = delivery.event ORDER BY event_id"""
    ) == [
        ("succeeded", None, "delivered, says ann: statement", False),
        ("dead", "not_delivered", "not delivered, says bob: phone", False),
    ]
    assert await tonight.sql("SELECT who, action, why FROM audit ORDER BY id") == [
        ("ann", "dead resolve", "statement"),
        ("bob", "dead resolve", "phone"),
    ]
