"""The recorder on real servers: each outcome once, statuses by MOVES, whatever comes and whoever dies."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta

import msgspec
import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from psycopg import AsyncConnection

from pipelines.record import Recorder
from sinks.pool import open_pool
from streams.delivery import MOVES, WORKER_DIED, Attempt, Kind, Move, State
from streams.errors import StoreUnavailable, TransitLost
from streams.scripts import Entry, Place
from tests.pipelines.night import ENCODER, JOB, NOW, Night, attempt, night, settlement

LATER = NOW + timedelta(minutes=5)


@pytest.fixture
async def stores(database_url: str, redis_url: str, key_prefix: str) -> AsyncIterator[Night]:
    """Two partners in generation 1."""
    async with night(database_url, redis_url, key_prefix) as found:
        yield found


async def taken(stores: Night, rows: int, name: str = "AB") -> tuple[Entry, ...]:
    """A batch of so many rows, fed and in the worker's hand."""
    await stores.release(rows, name)
    await stores.feeder.step(1)
    return await stores.take(rows, name=name)


async def write(stores: Night, attempted: Attempt | bytes, late: str = "", generation: int = 1) -> None:
    """Put an outcome into the stream as settle would."""
    data = attempted if isinstance(attempted, bytes) else ENCODER.encode(attempted)
    await stores.transit.redis.xadd(
        stores.keys().outcomes(generation), {"o": data, "d": "d", "a": "a", "t": "1", "l": late}
    )


async def logged(stores: Night) -> list[tuple[object, ...]]:
    """The log: event, number, outcome, reason, whether it came late."""
    return await stores.sql(
        "SELECT event_id, number, outcome, reason, late FROM delivery_log ORDER BY event_id, number"
    )


async def test_outcomes_become_statuses_and_log_rows(stores: Night) -> None:
    """Succeeded, retrying and dead arrive with all that is known about them."""
    one, two, three = await taken(stores, 3)
    await stores.settle(
        settlement(one, attempt(one, State.SUCCEEDED)),
        settlement(two, attempt(two, State.RETRYING, status_code=503, reason="503")),
        settlement(three, attempt(three, State.DEAD, status_code=400, reason="no such account")),
    )
    assert await stores.recorder.step() == 3
    assert await stores.sql(
        """SELECT row_number, status::text, attempts, last_status_code, last_error, cause, due_at,
                  fed_generation
           FROM delivery ORDER BY row_number"""
    ) == [
        (1, "succeeded", 1, 200, None, None, None, None),
        (2, "retrying", 1, 503, "503", None, NOW + timedelta(seconds=60), 1),
        (3, "dead", 1, 400, "no such account", "refused", None, None),
    ]
    assert [row[1:] for row in await logged(stores)] == [
        (1, "succeeded", "as told", False),
        (1, "retry", "503", False),
        (1, "dead", "no such account", False),
    ]


async def test_redis_is_told_how_far(stores: Night) -> None:
    """After the commit `pace` says up to which outcome, and how many, PostgreSQL has."""
    entries = await taken(stores, 3)
    settled = await stores.settle(*(settlement(e, attempt(e, State.SUCCEEDED)) for e in entries))
    await stores.recorder.step()
    recorded, counted = await stores.transit.redis.hmget(stores.keys().pace, "recorded", "counted")
    assert (recorded.decode(), int(counted)) == (settled.outcome_ids[-1], 3)


async def test_small_steps_reach_the_end(stores: Night) -> None:
    """A step is bounded; steps together record everything, in both partners."""
    first, other = await taken(stores, 25), await taken(stores, 5, "CD")
    await stores.settle(*(settlement(e, attempt(e, State.SUCCEEDED)) for e in first))
    await stores.settle(*(settlement(e, attempt(e, State.SUCCEEDED, name="CD")) for e in other), name="CD")
    counts = []
    while count := await stores.recorder.step(10):
        counts.append(count)
    assert max(counts) <= 10
    assert sum(counts) == 30
    assert set((await stores.statuses()).values()) == {"succeeded"}


async def test_the_same_outcome_again_changes_nothing(stores: Night) -> None:
    """An outcome that is settled twice is logged once, in one step or in two."""
    one, two = await taken(stores, 2)
    done = [settlement(e, attempt(e, State.SUCCEEDED)) for e in (one, two)]
    await stores.settle(done[0])
    await stores.settle(done[0])
    await stores.settle(done[1])
    await stores.recorder.step()
    before = await stores.sql("SELECT * FROM delivery ORDER BY row_number")
    await stores.settle(*done)
    assert await stores.recorder.step() == 2
    assert await stores.sql("SELECT * FROM delivery ORDER BY row_number") == before
    assert len(await logged(stores)) == 2


@pytest.mark.parametrize("together", [True, False], ids=["one step", "two steps"])
@pytest.mark.parametrize("how", ["late", "handed"])
async def test_the_workers_own_word_replaces_a_takeover(stores: Night, together: bool, how: str) -> None:
    """Taken over as Unknown, then reported by the worker after all: the log tells what the worker saw."""
    (entry,) = await taken(stores, 1)
    await write(stores, attempt(entry, State.RETRYING, outcome=Kind.UNKNOWN, reason=WORKER_DIED))
    if not together:
        await stores.recorder.step()
    await write(stores, attempt(entry, State.SUCCEEDED, reason="seen"), how)
    await stores.recorder.step()
    assert list((await stores.statuses()).values()) == ["succeeded"]
    assert [row[2:] for row in await logged(stores)] == [("succeeded", "seen", True)]
    assert await stores.sql("SELECT due_at, last_error FROM delivery") == [(None, None)]


async def test_a_late_failure_replaces_a_takeover_in_the_log_only(stores: Night) -> None:
    """The worker's late Retry tells what happened; the delivery goes on as the takeover said."""
    (entry,) = await taken(stores, 1)
    await write(stores, attempt(entry, State.DEAD, outcome=Kind.UNKNOWN, reason=WORKER_DIED))
    await write(stores, attempt(entry, State.RETRYING, reason="503"), "late")
    await stores.recorder.step()
    assert list((await stores.statuses()).values()) == ["dead"]
    assert [row[2:] for row in await logged(stores)] == [("retry", "503", True)]


async def test_a_takeover_replaces_nothing(stores: Night) -> None:
    """What a worker reported stays when a takeover of the same entry comes after it."""
    (entry,) = await taken(stores, 1)
    await write(stores, attempt(entry, State.SUCCEEDED))
    await stores.recorder.step()
    await write(stores, attempt(entry, State.RETRYING, outcome=Kind.UNKNOWN, reason=WORKER_DIED), "late")
    await stores.recorder.step()
    assert list((await stores.statuses()).values()) == ["succeeded"]
    assert [row[2] for row in await logged(stores)] == ["succeeded"]


@pytest.mark.parametrize("status", ["pending", "retrying", "dead", "cancelled"])
async def test_a_late_success_counts_wherever_the_delivery_is(stores: Night, status: str) -> None:
    """The partner has it: retrying, dead and cancelled deliveries become succeeded."""
    (entry,) = await taken(stores, 1)
    await stores.sql("UPDATE delivery SET status = %(s)s::delivery_status, attempts = 4", s=status)
    await write(stores, attempt(entry, State.SUCCEEDED), "late")
    await stores.recorder.step()
    assert await stores.sql("SELECT status::text, attempts FROM delivery") == [("succeeded", 4)]


@pytest.mark.parametrize("state", [State.RETRYING, State.DEAD])
@pytest.mark.parametrize("status", ["succeeded", "dead", "cancelled"])
async def test_a_failure_never_reopens(stores: Night, status: str, state: State) -> None:
    """No failure, in time or late, changes a delivery that is at its end."""
    (entry,) = await taken(stores, 1)
    await stores.sql("UPDATE delivery SET status = %(s)s::delivery_status, last_error = 'kept'", s=status)
    await write(stores, attempt(entry, state))
    await stores.recorder.step()
    assert await stores.sql("SELECT status::text, last_error, due_at FROM delivery") == [
        (status, "kept", None)
    ]


async def test_possible_duplicate_stays(stores: Night) -> None:
    """Once a send may have been the second one, the delivery says so for good."""
    (entry,) = await taken(stores, 1)
    await write(stores, attempt(entry, State.RETRYING, possible_duplicate=True))
    await stores.recorder.step()
    again = msgspec.structs.replace(entry, place=Place(entry.place.lane, "0-9"))
    await write(stores, attempt(again, State.SUCCEEDED, number=2))
    await stores.recorder.step()
    assert await stores.sql("SELECT status::text, possible_duplicate FROM delivery") == [("succeeded", True)]


@pytest.mark.parametrize("second", [State.SUCCEEDED, State.RETRYING])
async def test_a_second_send_flags_also_after_the_end(stores: Night, second: State) -> None:
    """The first send's success came late and ended it; then the second one, under way meanwhile, is told of."""
    (entry,) = await taken(stores, 1)
    await write(stores, attempt(entry, State.SUCCEEDED), "late")
    await stores.recorder.step()
    again = msgspec.structs.replace(entry, place=Place(entry.place.lane, "0-9"))
    await write(stores, attempt(again, second, number=2, possible_duplicate=True), "late")
    await stores.recorder.step()
    assert await stores.sql("SELECT status::text, possible_duplicate FROM delivery") == [("succeeded", True)]


async def test_a_success_whose_copy_was_in_a_hand_flags(stores: Night) -> None:
    """Whoever had the copy may have sent it, and may be dead."""
    (entry,) = await taken(stores, 1)
    await write(stores, attempt(entry, State.SUCCEEDED), "twice")
    await stores.recorder.step()
    assert await stores.sql("SELECT status::text, possible_duplicate FROM delivery") == [("succeeded", True)]
    assert [row[4] for row in await logged(stores)] == [True]


async def test_what_is_put_aside_flags_its_delivery(stores: Night) -> None:
    """It stays pending, so the next recovery feeds it again: that send may be the second one, and says so."""
    first, second = await taken(stores, 2)
    await stores.settle(settlement(first, attempt(first, State.SUCCEEDED), outcome=b"nonsense"))
    await stores.settle(settlement(second, attempt(second, State.SUCCEEDED)))
    await stores.recorder.step()
    await stores.open(2)
    await stores.feeder.step(2)
    [again] = await stores.take(9, generation=2)
    assert (again.delivery, again.possible_duplicate) == (first.delivery, True)


@pytest.mark.parametrize(
    "refusal", ["RAISE EXCEPTION 'the disk is full'", "RAISE EXCEPTION 'x' USING ERRCODE = '25006'"]
)
async def test_a_postgresql_that_takes_no_writes_is_waited_for(stores: Night, refusal: str) -> None:
    """An operational refusal meets every outcome alike: none is put aside, all are recorded once it is over."""
    entries = await taken(stores, 3)
    for entry in entries:
        await write(stores, attempt(entry, State.SUCCEEDED))
    await stores.sql(
        f"CREATE FUNCTION no() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN {refusal}; END $$;"
        "CREATE TRIGGER no BEFORE INSERT ON delivery_log FOR EACH ROW EXECUTE FUNCTION no()"
    )
    with pytest.raises(StoreUnavailable):
        await stores.recorder.step()
    await stores.sql("DROP TRIGGER no ON delivery_log")
    assert await stores.recorder.step() == 3
    assert set((await stores.statuses()).values()) == {"succeeded"}
    assert await stores.sql("SELECT * FROM outcome_quarantine") == []


async def test_what_is_handed_in_during_a_recovery_is_swept_later(stores: Night) -> None:
    """A retry handed in while Redis is closed waits in no delay stream, so sweep feeds it when it is due."""
    (entry,) = await taken(stores, 1)
    await stores.close(2)
    await stores.settle(settlement(entry, attempt(entry, State.RETRYING)), generation=2)
    assert await stores.recorder.drain(None) == 1
    await stores.open(2)
    assert await stores.feeder.sweep(2, LATER) == 1
    [again] = await stores.take(1, generation=2)
    assert again.delivery == entry.delivery


HOSTILE = {
    "no attempt": b"\xc1nonsense",
    "empty": b"",
    "number beyond smallint": {"number": 40_000},
    "code beyond smallint": {"status_code": 2**40},
    "number beyond bigint": {"number": 2**63},
    "NUL in an id": {"event_id": "1:\x00"},
    "attempt id without generation": {"attempt_id": "AB"},
    "time without zone": {"started_at": datetime(2026, 3, 2, 1)},  # noqa: DTZ001 -- that is what is wrong with it
}


@pytest.mark.parametrize("what", HOSTILE)
async def test_what_cannot_be_recorded_is_put_aside_alone(stores: Night, what: str) -> None:
    """One bad outcome is kept with its bytes, its neighbours are recorded, and the stream moves on."""
    entries = await taken(stores, 9)
    for i, entry in enumerate(entries):
        good = attempt(entry, State.SUCCEEDED)
        change = HOSTILE[what]
        if i != 4:
            await write(stores, good)
        elif isinstance(change, bytes):
            await write(stores, change)
        else:
            await write(stores, msgspec.structs.replace(good, **change))
    assert await stores.recorder.step() == 9
    states = list((await stores.statuses()).values())
    assert sorted(states) == ["pending", *["succeeded"] * 8]
    [(partner, data)] = await stores.sql("SELECT partner, data FROM outcome_quarantine")
    assert partner == "AB"
    if isinstance(HOSTILE[what], bytes):
        assert data == HOSTILE[what]
    assert await stores.recorder.step() == 0


async def test_text_from_outside_is_cleaned(stores: Night) -> None:
    """A NUL in a response stops nobody: it becomes the replacement character."""
    (entry,) = await taken(stores, 1)
    await write(stores, attempt(entry, State.DEAD, reason="a\x00b", excerpt="\x00\ud7ff\U0001f600'\"\\\t\n"))
    await stores.recorder.step()
    assert await stores.sql("SELECT reason, excerpt FROM delivery_log") == [
        ("a\ufffdb", "\ufffd\ud7ff\U0001f600'\"\\\t\n")
    ]


async def test_two_recorders_record_once(stores: Night) -> None:
    """Recorders at the same time: together everything, each outcome by one of them."""
    entries = await taken(stores, 60)
    await stores.settle(*(settlement(e, attempt(e, State.SUCCEEDED)) for e in entries))
    twin = Recorder(stores.pool, stores.transit, stores.partners)
    counts = await asyncio.gather(*(r.step(20) for r in (stores.recorder, twin, stores.recorder, twin)))
    while count := await stores.recorder.step(20):
        counts.append(count)
    assert sum(counts) == 60
    assert await stores.sql("SELECT counted FROM outcome_offset WHERE partner = 'AB'") == [(60,)]
    assert len(await logged(stores)) == 60


async def test_an_offset_that_moved_meanwhile_is_not_written_over(stores: Night) -> None:
    """Whoever holds an outdated offset writes nothing, even without the turn that recorders take."""
    (entry,) = await taken(stores, 1)
    await write(stores, attempt(entry, State.SUCCEEDED))
    connection: AsyncConnection[tuple[object, ...]]
    async with stores.pool.connection() as connection:
        await connection.execute("UPDATE outcome_offset SET last = '9-9' WHERE partner = 'AB'")
        step = asyncio.create_task(stores.recorder.step())
        while not await stores.sql(WAITING):  # noqa: ASYNC110 -- PostgreSQL offers no event for a lock that waits
            await asyncio.sleep(0)
    assert await step == 0
    assert await logged(stores) == []


WAITING = "SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
"""Whether a session of this test's database waits for a lock."""

CRASH = """
import asyncio, sys
from tests.pipelines.night import partner
from pipelines.record import Recorder
from sinks.pool import open_pool
from streams.transit import Transit

async def main() -> None:
    pool = await open_pool(sys.argv[1], name="crash", connections=2)
    transit = Transit.open(sys.argv[2], sys.argv[3])
    await Recorder(pool, transit, {"AB": partner("AB")}).step()

asyncio.run(main())
"""


@pytest.mark.parametrize("failpoint", ["record-before-commit", "record-after-commit"])
async def test_killed_at_the_commit(
    stores: Night, failpoint: str, database_url: str, redis_url: str, key_prefix: str
) -> None:
    """A recorder killed on either side of its commit: each outcome once, and Redis learns how far it is."""
    entries = await taken(stores, 7)
    settled = await stores.settle(*(settlement(e, attempt(e, State.SUCCEEDED)) for e in entries))
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", CRASH, database_url, redis_url, key_prefix),
        env={**os.environ, "MADEIRA_FAILPOINT": failpoint, "PYTHONPATH": os.pathsep.join(sys.path)},
        stdout=subprocess.DEVNULL,
    )
    assert await process.wait() == -signal.SIGKILL
    await stores.recorder.drain(None)
    assert len(await logged(stores)) == 7
    assert await stores.sql("SELECT counted FROM outcome_offset WHERE partner = 'AB'") == [(7,)]
    assert await stores.transit.redis.hget(stores.keys().pace, "recorded") == settled.outcome_ids[-1].encode()


async def test_drain_takes_older_generations_only(stores: Night) -> None:
    """Drained below a generation: what older streams hold is recorded, the newer one waits."""
    one, two = await taken(stores, 2)
    await write(stores, attempt(one, State.SUCCEEDED))
    await stores.close(2)
    await write(stores, attempt(two, State.SUCCEEDED), "handed", generation=2)
    assert await stores.recorder.drain(2) == 1
    assert await stores.recorder.drain(2) == 0
    assert await stores.recorder.drain(None) == 1


async def test_outcomes_that_began_again_are_told(stores: Night) -> None:
    """A stream of the current generation that ends before its offset starts a recovery, not a silent wait."""
    (entry,) = await taken(stores, 1)
    await stores.settle(settlement(entry, attempt(entry, State.SUCCEEDED)))
    await stores.recorder.step()
    await stores.transit.redis.delete(stores.keys().outcomes(1))
    with pytest.raises(TransitLost):
        await stores.recorder.step()
    await stores.transit.redis.xadd(stores.keys().outcomes(1), {"o": b"x"}, id="1-1")
    with pytest.raises(TransitLost):
        await stores.recorder.step()


async def test_forgets_only_what_was_committed_long_enough_ago(stores: Night) -> None:
    """`open` and the outcome stay for the time asked, counted from when the commit was first seen."""
    one, two = await taken(stores, 2)
    await stores.settle(settlement(one, attempt(one, State.SUCCEEDED)))
    await stores.recorder.step()
    assert await stores.recorder.forget(LATER) == 0
    await stores.settle(settlement(two, attempt(two, State.SUCCEEDED)))
    await stores.recorder.step()
    assert await stores.recorder.forget(LATER + timedelta(seconds=59)) == 0
    assert await stores.recorder.forget(LATER + timedelta(seconds=60)) == 1
    assert list(await stores.open_deliveries()) == [two.delivery]
    assert await stores.recorder.forget(LATER + timedelta(seconds=119)) == 1
    assert await stores.open_deliveries() == {}


async def test_what_is_not_recorded_is_not_forgotten(stores: Night) -> None:
    """However old, an outcome that PostgreSQL does not have stays in Redis."""
    (entry,) = await taken(stores, 1)
    await stores.settle(settlement(entry, attempt(entry, State.SUCCEEDED)))
    await stores.recorder.forget(NOW)
    assert await stores.recorder.forget(LATER) == 0
    assert await stores.transit.redis.xlen(stores.keys().outcomes(1)) == 1


async def test_partitions_are_made_ahead_and_skipped_when_rows_are_there(stores: Night) -> None:
    """This month's and the next one's partitions exist; a month already in the default one stays there."""
    (entry,) = await taken(stores, 1)
    await write(stores, attempt(entry, State.SUCCEEDED))
    await stores.recorder.step()
    assert await stores.recorder.ensure_partitions(datetime(2026, 12, 31, 23, tzinfo=UTC)) == 2
    assert await stores.recorder.ensure_partitions(datetime(2026, 12, 31, 23, tzinfo=UTC)) == 0
    assert await stores.recorder.ensure_partitions(datetime(2026, 3, 1, tzinfo=UTC)) == 1, (
        "March is in default"
    )
    assert await stores.sql(
        "SELECT relid::text FROM pg_partition_tree('delivery_log') WHERE isleaf ORDER BY 1"
    ) == [
        ("delivery_log_2026_04",),
        ("delivery_log_2026_12",),
        ("delivery_log_2027_01",),
        ("delivery_log_default",),
    ]


async def test_postgresql_away(stores: Night) -> None:
    """Without PostgreSQL a step says so in one way, and Redis keeps everything."""
    (entry,) = await taken(stores, 1)
    await write(stores, attempt(entry, State.SUCCEEDED))
    nowhere = await open_pool(
        "postgresql://nobody@127.0.0.1:1/none", name="away", wait=timedelta(milliseconds=50)
    )
    with pytest.raises(StoreUnavailable):
        await Recorder(nowhere, stores.transit, stores.partners).step()
    await nowhere.close()
    assert await stores.recorder.step() == 1


REPORTS = st.lists(
    st.tuples(
        st.integers(1, 4),
        st.sampled_from([State.SUCCEEDED, State.RETRYING, State.DEAD]),
        st.sampled_from(["", "late", "handed"]),
        st.booleans(),
    ),
    min_size=1,
    max_size=8,
)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    reports=REPORTS,
    cuts=st.sets(st.integers(0, 7)),
    start=st.sampled_from(["pending", "retrying", "dead", "cancelled"]),
)
async def test_every_status_change_is_a_move(
    stores: Night, reports: list[tuple[int, State, str, bool]], cuts: set[int], start: str
) -> None:
    """Whatever is reported, in whatever steps: only moves that MOVES has, and attempts never go down."""
    batch = await stores.release(1)
    await stores.sql(
        "UPDATE delivery SET status = %(s)s::delivery_status WHERE batch_id = %(b)s", s=start, b=batch
    )
    status, attempts = State(start), 0
    for i, (number, state, late, takeover) in enumerate(reports):
        entry = Entry(Place(f"batch:{batch}", f"1-{number}"), f"{JOB}:{batch}:1", 0, 0, False, b"")
        unknown = takeover and state is not State.SUCCEEDED
        await write(
            stores,
            attempt(
                entry,
                state,
                number=number,
                outcome=Kind.UNKNOWN if unknown else None,
                reason=WORKER_DIED if unknown else "as told",
            ),
            late,
        )
        if i in cuts or i == len(reports) - 1:
            await stores.recorder.step()
            [(found, now_attempts)] = await stores.sql(
                "SELECT status::text, attempts FROM delivery WHERE batch_id = %(b)s", b=batch
            )
            assert State(str(found)) in reachable(status)
            assert isinstance(now_attempts, int)
            assert now_attempts >= attempts
            status, attempts = State(str(found)), now_attempts
    if State.SUCCEEDED in kept(reports):
        assert status is State.SUCCEEDED, "the partner has it, so nothing else may be shown"


def reachable(status: State) -> set[State]:
    """Where outcomes alone can lead from here, in any number of moves."""
    by_outcome = {Move.SUCCEED, Move.RETRY, Move.GIVE_UP, Move.LATE_SUCCESS, Move.DOUBT}
    found, new = {status}, {status}
    while new:
        new = {to for s in new for move, to in MOVES[s].items() if move in by_outcome} - found
        found |= new
    return found


def kept(reports: list[tuple[int, State, str, bool]]) -> set[State]:
    """Where the reports lead that stay: each attempt's first, or the worker's after a takeover's."""
    last: dict[int, tuple[bool, State]] = {}
    for number, state, _, unknown in reports:
        takeover = unknown and state is not State.SUCCEEDED
        if number not in last or (last[number][0] and not takeover):
            last[number] = (takeover, state)
    return {state for _, state in last.values()}


async def test_rows_are_reached_by_their_keys(stores: Night, database_url: str) -> None:
    """Feeding and recording read no whole table, though nobody has analysed what was just loaded."""
    entries = await taken(stores, 20)
    await stores.settle(*(settlement(e, attempt(e, State.SUCCEEDED)) for e in entries))
    assert await stores.recorder.step() == 20
    await stores.pool.close()  # sessions that end hand in what they counted
    scans: dict[str, tuple[int, int]] = {}
    async with await psycopg.AsyncConnection.connect(database_url, autocommit=True) as watcher:
        async with asyncio.timeout(20):
            while scans.get("delivery", (0, 0))[1] < 20:
                cursor = await watcher.execute(
                    "SELECT relname, seq_scan, idx_scan FROM pg_stat_user_tables"
                    " WHERE relname IN ('event', 'delivery')"
                )
                scans = {name: (by_all, by_key) for name, by_all, by_key in await cursor.fetchall()}
    assert {name: by_all for name, (by_all, _) in scans.items()} == {"event": 0, "delivery": 0}
