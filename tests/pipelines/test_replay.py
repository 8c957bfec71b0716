"""Replay on real servers: all or nothing, once, in order, and then a batch like every other."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from datetime import UTC, date, datetime, timedelta

import pytest

from pipelines.attempt import Hand, Timing, policy_of, settle_outcome
from pipelines.dead_letters import Filter, resolve
from pipelines.reconcile import look
from pipelines.replay import CONFIRM_FIRST, MAY_HAVE_ARRIVED, NO_PARTNER, Replay
from pipelines.route import Route
from pipelines.router import Router
from sinks.snapshot import snapshot
from streams.delivery import Kind, Retry, State
from streams.envelope import Lane, decode
from tests.pipelines.dead import dead, end, fed, replay, taken
from tests.pipelines.live import TO_KEY, Live, event
from tests.pipelines.night import JOB, WORKER, Night, night

TODAY = date(2026, 3, 5)
ALL = Filter()

CRASHER = """
import asyncio, sys
from datetime import date
from pipelines.dead_letters import Filter
from pipelines.replay import Replay
from sinks.pool import open_pool
from tests.pipelines.night import partner

async def crash(database):
    pool = await open_pool(database, name="crasher")
    await Replay(pool, {"AB": partner("AB")}).replay(Filter(), today=date(2026, 3, 5), who="ann")

asyncio.run(crash(sys.argv[1]))
"""


@pytest.fixture
async def tonight(database_url: str, redis_url: str, key_prefix: str) -> AsyncIterator[Night]:
    """A night on which nothing has happened yet."""
    async with night(database_url, redis_url, key_prefix) as found:
        yield found


async def facts(night: Night) -> list[tuple[object, ...]]:
    """Every delivery: event id, status, cause, batch's job, row."""
    return await night.sql(
        """SELECT e.event_id, d.status::text, d.cause, b.job, d.row_number
           FROM delivery d JOIN event e ON e.id = d.event LEFT JOIN batch b ON b.id = d.batch_id ORDER BY e.id"""
    )


async def test_dead_deliveries_go_again_in_their_order_with_their_bytes(tonight: Night) -> None:
    """Rows of two nights become one batch: in the order in which they came in, bytes and key as they were."""
    first = await dead(tonight, 3)
    second = await dead(tonight, 2)
    done = await replay(tonight).replay(ALL, today=TODAY, who="ann", why="bank is back")
    assert (done.count, done.revision) == (5, 1)
    assert await fed(tonight) == 5  # although Redis still knows that they were done
    entries = await taken(tonight)
    assert [entry.delivery for entry in entries] == [
        f"{JOB}:{batch}:{n}" for batch, rows in ((first, 3), (second, 2)) for n in range(1, rows + 1)
    ]
    assert [entry.place.entry for entry in entries] == [f"1-{n}" for n in range(1, 6)]
    assert decode(entries[0].envelope).payload == b'{"n":1}'
    await end(tonight, entries, State.SUCCEEDED)
    assert set((await tonight.statuses()).values()) == {"succeeded"}


async def test_a_second_click_finds_nothing(tonight: Night) -> None:
    """What is on its way is not dead: nothing happens, and no batch and no audit row is left behind."""
    await dead(tonight, 3)
    await replay(tonight).replay(ALL, today=TODAY, who="ann")
    again = await replay(tonight).replay(ALL, today=TODAY, who="ann")
    assert (again.count, again.batch_id, again.sums) == (0, None, ())
    assert await tonight.sql("SELECT count(*) FROM batch WHERE job = 'replay'") == [(1,)]
    assert await tonight.sql("SELECT count(*) FROM audit") == [(1,)]


async def test_two_operators_at_once_send_nothing_twice(tonight: Night) -> None:
    """Of two replays that overlap each row is moved by one; together they move all."""
    await dead(tonight, 40)
    wide, narrow = ALL, Filter(currency="CZK", least=1_000)
    done = await asyncio.gather(
        replay(tonight).replay(wide, today=TODAY, who="ann"),
        replay(tonight).replay(narrow, today=TODAY, who="bob"),
        replay(tonight).replay(wide, today=TODAY, who="cid"),
    )
    assert sum(each.count for each in done) == 40
    assert await fed(tonight) == 40
    entries = await taken(tonight)
    assert len({entry.delivery for entry in entries}) == len(entries) == 40


async def test_a_dry_run_says_the_same_and_writes_nothing(tonight: Night) -> None:
    """Counts and sums come from the very choice that the replay makes."""
    await dead(tonight, 3)
    before = await facts(tonight)
    planned = await replay(tonight).replay(ALL, today=TODAY, who="ann", dry_run=True)
    assert await facts(tonight) == before
    assert await tonight.sql("SELECT count(*) FROM audit") == [(0,)]
    done = await replay(tonight).replay(ALL, today=TODAY, who="ann")
    assert (planned.sums, planned.count) == (done.sums, 3)
    [group] = done.sums
    assert (group.partner, group.cause, group.currency, group.count, group.minor) == (
        "AB",
        "refused",
        "CZK",
        3,
        600,
    )


@pytest.mark.parametrize(("point", "moved"), [("replay-before-commit", 0), ("replay-after-commit", 3)])
async def test_killed_anywhere_nothing_or_all_of_it_happened(
    point: str, moved: int, tonight: Night, database_url: str
) -> None:
    """Whoever replays again gets the rest, and each is sent once."""
    await dead(tonight, 3)
    environment = {**os.environ, "MADEIRA_FAILPOINT": point}
    crashed = await asyncio.to_thread(
        subprocess.run, [sys.executable, "-c", CRASHER, database_url], env=environment, check=False
    )
    assert crashed.returncode == -signal.SIGKILL
    assert [status for _, status, *_ in await facts(tonight)].count("pending") == moved
    assert await tonight.sql("SELECT count(*) FROM audit") == [(int(moved > 0),)]
    again = await replay(tonight).replay(ALL, today=TODAY, who="ann")
    assert again.count == 3 - moved
    assert await fed(tonight) == 3
    assert len(await taken(tonight)) == 3


async def test_replayed_while_the_partner_is_paused_it_waits(tonight: Night) -> None:
    """A replay feeds the lanes; a pause is a pause."""
    await dead(tonight, 3)
    keys = tonight.keys()
    await tonight.transit.scripts.pause(keys, generation=1, paused=True)
    await replay(tonight).replay(ALL, today=TODAY, who="ann")
    assert await fed(tonight) == 3
    assert await taken(tonight) == []
    await tonight.transit.scripts.pause(keys, generation=1, paused=False)
    assert len(await taken(tonight)) == 3


async def test_attempts_count_anew_and_their_numbers_go_on(tonight: Night) -> None:
    """`max_attempts` and `max_age` count from the replay, the log's numbers and ids never repeat."""
    await dead(tonight, 1)
    before = datetime.now(UTC) - timedelta(minutes=1)
    await replay(tonight).replay(ALL, today=TODAY, who="ann")
    await fed(tonight)
    [entry] = await taken(tonight)
    envelope = decode(entry.envelope)
    assert (entry.attempts, entry.unknowns, envelope.attempts_before) == (1, 0, 1)
    assert envelope.replayed_at is not None
    assert envelope.replayed_at > before
    await end(tonight, [entry], State.DEAD)
    found = await tonight.sql("SELECT number, attempt_id FROM delivery_log ORDER BY number")
    assert [number for number, _ in found] == [1, 2]
    assert len({attempt_id for _, attempt_id in found}) == 2
    # And once more, of which Redis has the last end only.
    await replay(tonight).replay(ALL, today=TODAY, who="ann")
    assert await fed(tonight) == 1
    [entry] = await taken(tonight)
    assert decode(entry.envelope).attempts_before == 2


async def test_what_may_have_arrived_is_flagged_or_left(tonight: Night) -> None:
    """An idempotent partner gets it again as a possible duplicate; for another somebody must ask first."""
    await dead(tonight, 2, outcome=Kind.UNKNOWN)
    await dead(tonight, 1)
    careful = await replay(tonight, confirm_first=["AB"]).replay(ALL, today=TODAY, who="ann")
    assert careful.count == 1
    assert [(each.left_out, each.count) for each in careful.sums] == [("", 1), (CONFIRM_FIRST, 2)]
    await replay(tonight).replay(ALL, today=TODAY, who="ann")
    await fed(tonight)
    assert sorted(entry.possible_duplicate for entry in await taken(tonight)) == [False, True, True]


async def test_what_did_not_arrive_by_the_partners_word_is_sent_as_if_for_the_first_time(
    tonight: Night,
) -> None:
    """After `resolve` as not delivered even a partner that is not idempotent gets it, and nothing is flagged."""
    batch = await dead(tonight, 1, outcome=Kind.UNKNOWN)
    one = Filter(key=f"{JOB}:{batch}:1")
    assert await resolve(tonight.pool, one, delivered=False, who="ann", note="not in their books") == ["AB"]
    done = await replay(tonight, confirm_first=["AB"]).replay(
        Filter(cause="not_delivered"), today=TODAY, who="ann"
    )
    assert done.count == 1
    await fed(tonight)
    [entry] = await taken(tonight)
    assert not entry.possible_duplicate


async def test_a_partner_that_is_gone_is_named(tonight: Night) -> None:
    """Nobody would ever feed it, so it stays dead."""
    await dead(tonight, 1, name="CD")
    only = {"AB": tonight.partners["AB"]}
    done = await Replay(tonight.pool, only).replay(ALL, today=TODAY, who="ann")
    assert [(each.left_out, each.count) for each in done.sums] == [(NO_PARTNER, 1)]
    assert (done.count, done.batch_id) == (0, None)


async def test_a_lost_redis_feeds_a_replay_again(tonight: Night) -> None:
    """It is a batch: after a recovery what is not over is fed by its own lane, what is over is not."""
    await dead(tonight, 3)
    await replay(tonight).replay(ALL, today=TODAY, who="ann")
    await fed(tonight)
    first, *_ = await taken(tonight, limit=1)
    await end(tonight, [first], State.SUCCEEDED)
    await tonight.open(2)
    assert await fed(tonight, 2) == 2
    assert [entry.place.entry for entry in await taken(tonight, generation=2)] == ["1-2", "1-3"]


async def test_a_retry_of_a_replayed_delivery_is_swept_with_its_count(tonight: Night) -> None:
    """Sweep hands over the same envelope as the feeder did: the count from the replay is in it."""
    await dead(tonight, 1)
    await replay(tonight).replay(ALL, today=TODAY, who="ann")
    await fed(tonight)
    await end(tonight, await taken(tonight), State.RETRYING)
    await tonight.open(2)
    assert await tonight.feeder.sweep(2, datetime.now(UTC)) == 1
    [entry] = await taken(tonight, generation=2)
    assert (entry.attempts, decode(entry.envelope).attempts_before) == (2, 1)


async def test_the_morning_of_the_first_batch_still_balances(tonight: Night, database_url: str) -> None:
    """The manifest is the first batch's, the item is where it is now; the replay is no batch of its date."""
    batch = await dead(tonight, 2)
    await tonight.sql(
        "UPDATE batch SET expected_count = 2, loaded_count = 2, already_known = 0 WHERE id = %(b)s", b=batch
    )
    await tonight.sql(
        """INSERT INTO batch_total (batch_id, partner, currency, expected_count, expected_minor, loaded_count,
                                    loaded_minor)
           VALUES (%(b)s, 'AB', 'CZK', 2, 300, 2, 300)""",
        b=batch,
    )
    await replay(tonight).replay(ALL, today=TODAY, who="ann")
    await fed(tonight)
    await end(tonight, await taken(tonight), State.SUCCEEDED)
    with snapshot(database_url, name="test") as record:
        first, then = look(record, date(2026, 3, 2)), look(record, TODAY)
    assert (first.balance.verdict, first.balance.problems) == ("closed", ())
    assert then.balance.problems == (f"no batch for {TODAY}",)


async def live_dead(live: Live, *ids: str, outcome: Kind | None = None) -> None:
    """Live events that the partner refused."""
    await live.accept(*(event(name) for name in ids))
    await live.routed()
    await end(live.night, await taken(live.night), State.DEAD, outcome=outcome)


@pytest.fixture
async def shop(tonight: Night) -> Live:
    """A night with a router."""
    return Live(
        tonight,
        Router(tonight.pool, tonight.transit, tonight.partners, [Route("r", ("AB",), body="{first: n}")]),
    )


async def test_live_events_go_again_as_their_route_made_them(shop: Live) -> None:
    """By default the bytes that were made when it was routed, whatever jobs.toml says today; as rows of a batch."""
    await live_dead(shop, "a", "b")
    done = await replay(shop.night, TO_KEY).replay(Filter(lane=Lane.LIVE), today=TODAY, who="ann")
    assert done.count == 2
    await fed(shop.night)
    entries = await taken(shop.night)
    assert [decode(entry.envelope).event_id for entry in entries] == ["a", "b"]
    assert {decode(entry.envelope).payload for entry in entries} == {b'{"first":1.0}'}


async def test_the_current_route_makes_other_bytes_where_nothing_arrived(shop: Live) -> None:
    """Today's route decides body and address; what may have arrived keeps its bytes and stays."""
    await live_dead(shop, "a")
    await live_dead(shop, "b", outcome=Kind.UNKNOWN)
    today = Route("now", ("AB",), body="{second: n}", target_uri="https://bank.example/now")
    done = await replay(shop.night, today).replay(ALL, today=TODAY, who="ann", current_route=True)
    assert [(each.left_out, each.count) for each in done.sums] == [("", 1), (MAY_HAVE_ARRIVED, 1)]
    await fed(shop.night)
    [entry] = await taken(shop.night)
    envelope = decode(entry.envelope)
    assert (envelope.payload, envelope.target_uri) == (b'{"second":1.0}', "https://bank.example/now")


async def test_what_no_route_sends_there_today_stays_dead(shop: Live) -> None:
    """And a dry run leaves the bytes of the others as they were."""
    await live_dead(shop, "a")
    elsewhere = Route("now", ("CD",))
    done = await replay(shop.night, elsewhere).replay(ALL, today=TODAY, who="ann", current_route=True)
    assert [(each.left_out, each.count) for each in done.sums] == [("no route sends it there today", 1)]
    again = Route("now", ("AB",), body="{second: n}")
    await replay(shop.night, again).replay(ALL, today=TODAY, who="ann", current_route=True, dry_run=True)
    assert await shop.night.sql("SELECT convert_from(body, 'UTF8') FROM reshaped") == [('{"first":1.0}',)]


@pytest.mark.parametrize(("before", "state"), [(0, State.DEAD), (12, State.RETRYING)])
async def test_a_replayed_delivery_has_all_its_attempts_again(
    before: int, state: State, tonight: Night
) -> None:
    """The thirteenth attempt of an old event is its last, unless it is the first since a replay of just now."""
    await tonight.release(1)
    await tonight.sql(
        "UPDATE delivery SET attempts = 12, attempts_before = %(b)s, replayed_at = %(at)s",
        b=before,
        at=datetime.now(UTC) if before else None,
    )
    await fed(tonight)
    [entry] = await taken(tonight)
    bank = tonight.partners["AB"]
    hand = Hand(bank, policy_of(bank), entry, decode(entry.envelope), 1, WORKER)
    now = datetime.now(UTC)
    ended = settle_outcome(hand, Retry("503", may_have_arrived=False), Timing(now, now, now))
    assert (ended.attempt.number, ended.attempt.state) == (13, state)
