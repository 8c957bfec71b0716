"""Metrics: counts of several processes are one, the dead leave only counts, and a look at the stores is bounded."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.parser import text_string_to_metric_families

from madeira.embedded_valkey import PrivateValkey
from madeira.metrics import CONTENT_TYPE, METRICS, OTHER, WAITED, Endpoint, Metrics, Refusal, Shape
from pipelines.live_source import Durability
from sinks.partner import Partner
from sinks.pool import open_pool
from streams import gauges, inbound
from streams.delivery import Attempt, Cause, Kind, State
from streams.envelope import encode
from streams.inbound import Inbound
from streams.scripts import Feed
from streams.transit import Transit
from tests.pipelines.night import NOW, Night, attempt, night, settlement

ROOT = Path(__file__).parents[2]
NEVER = timedelta(0)
AB = Partner(name="AB", endpoint="https://ab.example/", qps=50)
Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


def opened(folder: Path, clock: Callable[[], float] = monotonic) -> Metrics:
    """Metrics that are shown anew each time, and know AB and the source shop."""
    metrics = Metrics(folder, keep=NEVER, clock=clock)
    metrics.adopt({"AB": AB}, {"shop"})
    return metrics


async def shown(metrics: Metrics) -> Samples:
    """Every sample, by name and labels, as Prometheus reads them."""
    text = (await metrics.render()).decode()
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def of(samples: Samples, name: str, **labels: str) -> float | None:
    """One sample, None if it is not there."""
    return samples.get((name, frozenset(labels.items())))


def ended(
    state: State = State.SUCCEEDED,
    *,
    number: int = 1,
    after: timedelta | None = timedelta(milliseconds=20),
    doubtful: bool = False,
) -> Attempt:
    """An attempt that left `after` its event was accepted; None: it never left."""
    outcome = {State.SUCCEEDED: Kind.SUCCEEDED, State.RETRYING: Kind.RETRY, State.DEAD: Kind.DEAD}[state]
    return Attempt(
        attempt_id="AB/1/live/1-1",
        source="shop",
        event_id="e",
        partner="AB",
        created_at=NOW,
        number=number,
        unknowns=0,
        worker="w",
        trace_id="0" * 32,
        started_at=NOW,
        sent_at=None if after is None else NOW + after,
        elapsed_ms=12,
        status_code=200,
        outcome=outcome,
        reason="as told",
        may_have_arrived=False,
        possible_duplicate=doubtful,
        excerpt="",
        state=state,
        cause=Cause.REFUSED if state is State.DEAD else None,
    )


@pytest.fixture
async def metrics(tmp_path: Path) -> AsyncIterator[Metrics]:
    """The only process of a host."""
    found = opened(tmp_path / "metrics")
    yield found
    found.close()


# -- what is counted ------------------------------------------------------------------------------------------


async def test_events_are_counted_by_source(metrics: Metrics) -> None:
    """Accepted, duplicates and refusals; whoever claims a name that jobs.toml lacks is `other`."""
    metrics.accepted("shop", Durability.POSTGRES, 3)
    metrics.accepted("shop", Durability.POSTGRES)
    metrics.duplicate("shop", Durability.REDIS, 2)
    for name in ("shop", "nobody", "x" * 500):
        metrics.refused(name, Refusal.SIGNATURE)
    samples = await shown(metrics)
    name = "madeira_inbound_events_total"
    assert of(samples, name, source="shop", durability="postgres", verdict="accepted") == 4
    assert of(samples, name, source="shop", durability="redis", verdict="duplicate") == 2
    name = "madeira_inbound_refused_total"
    assert of(samples, name, source="shop", reason="signature") == 1
    assert of(samples, name, source=OTHER, reason="signature") == 2


async def test_attempts_are_counted_by_how_they_ended(metrics: Metrics) -> None:
    """Outcome per lane; tries of what is over; deaths by cause; doubtful ones that left once more."""
    metrics.settled("AB", "live", ended())
    metrics.settled("AB", "batch:7", ended(State.RETRYING))
    metrics.settled("AB", "batch:7:returns", ended(State.DEAD, number=4, doubtful=True))
    metrics.settled("AB", "live", ended(number=6, after=None, doubtful=True))
    samples = await shown(metrics)
    name = "madeira_attempts_settled_total"
    assert of(samples, name, partner="AB", lane="live", outcome="succeeded") == 2
    assert of(samples, name, partner="AB", lane="batch", outcome="retry") == 1
    assert of(samples, name, partner="AB", lane="batch", outcome="dead") == 1
    name = "madeira_deliveries_ended_total"
    found = [of(samples, name, partner="AB", attempts=tries) for tries in ("1", "2", "3-5", "more")]
    assert found == [1, 0, 1, 1]
    assert of(samples, "madeira_dead_letters_total", partner="AB", cause="refused") == 1
    assert of(samples, "madeira_possible_duplicates_total", partner="AB") == 1


@pytest.mark.parametrize(
    ("number", "tries"), [(1, "1"), (2, "2"), (3, "3-5"), (5, "3-5"), (6, "more"), (99, "more")]
)
async def test_tries_have_four_classes(metrics: Metrics, number: int, tries: str) -> None:
    """However many attempts a partner is given, the labels are four."""
    metrics.settled("AB", "live", ended(number=number))
    assert of(await shown(metrics), "madeira_deliveries_ended_total", partner="AB", attempts=tries) == 1


async def test_latency_is_of_first_attempts(metrics: Metrics) -> None:
    """A retry waits on purpose, and what never left has no latency."""
    metrics.settled("AB", "live", ended(after=timedelta(milliseconds=20)))
    metrics.settled("AB", "live", ended(after=timedelta(hours=1), number=2))
    metrics.settled("AB", "live", ended(State.RETRYING, after=None))
    samples = await shown(metrics)
    name = "madeira_accept_to_sent_seconds"
    assert of(samples, f"{name}_count", partner="AB", lane="live") == 1
    assert of(samples, f"{name}_sum", partner="AB", lane="live") == pytest.approx(0.02)
    assert of(samples, "madeira_send_seconds_count", partner="AB") == 2
    assert of(samples, "madeira_send_seconds_sum", partner="AB") == pytest.approx(0.024)


@given(st.lists(st.floats(0, 100_000), min_size=1, max_size=30))
def test_a_histogram_is_what_was_observed(seconds: list[float]) -> None:
    """Each bucket holds what is at most its bound, also where counts come in two portions."""

    async def check(folder: Path) -> None:
        metrics = opened(folder)
        try:
            for number, each in enumerate(seconds):
                metrics.settled("AB", "live", ended(after=timedelta(seconds=each)))
                if number == len(seconds) // 2:
                    metrics.flush()
            samples = await shown(metrics)
        finally:
            metrics.close()
        rounded = [timedelta(seconds=each).total_seconds() for each in seconds]
        name = "madeira_accept_to_sent_seconds"
        for bound in (*WAITED.bounds, float("inf")):
            le = "+Inf" if bound == float("inf") else str(bound)
            at_most = sum(each <= bound for each in rounded)
            assert of(samples, f"{name}_bucket", partner="AB", lane="live", le=le) == at_most
        assert of(samples, f"{name}_sum", partner="AB", lane="live") == pytest.approx(sum(rounded))

    with TemporaryDirectory() as folder:
        asyncio.run(check(Path(folder)))


async def test_pace_used_is_the_share_of_ten_seconds(tmp_path: Path) -> None:
    """Over both processes that send; what is older than ten seconds counts no more."""
    now = 0.0
    first, second = opened(tmp_path, lambda: now), opened(tmp_path, lambda: now)
    for now, metrics, sends in ((1000.5, first, 100), (1003.5, second, 150)):  # noqa: B007 - the clock reads `now`
        for _ in range(sends):
            metrics.settled("AB", "live", ended())
        metrics.flush()
    for now, used in ((1003.5, 250), (1009.9, 250), (1010.0, 150), (1013.0, 0)):  # noqa: B007
        first.flush()
        second.flush()
        samples = await shown(first)
        assert of(samples, "madeira_pace_used_ratio", partner="AB") == pytest.approx(used / 500)
    for metrics in (first, second):
        metrics.close()


async def test_what_may_happen_is_there_before_it_does(metrics: Metrics) -> None:
    """As 0: the first death of a partner is a rise from it, which an alert sees."""
    samples = await shown(metrics)
    assert of(samples, "madeira_dead_letters_total", partner="AB", cause="refused") == 0
    assert of(samples, "madeira_attempts_settled_total", partner="AB", lane="batch", outcome="unknown") == 0
    assert of(samples, "madeira_accept_to_sent_seconds_count", partner="AB", lane="live") == 0
    assert of(samples, "madeira_inbound_refused_total", source="shop", reason="rate") == 0
    assert of(samples, "madeira_inbound_refused_total", source=OTHER, reason="signature") == 0


async def test_everything_else_is_shown(metrics: Metrics) -> None:
    """Router, configuration, stuck services, requests, and which version answers."""
    metrics.routed(5)
    metrics.unroutable()
    metrics.configuration_refused()
    metrics.configuration_taken()
    metrics.stuck()
    metrics.ingested(Endpoint.BULK, 0.003)
    before = datetime.now(UTC).timestamp()
    samples = await shown(metrics)
    assert of(samples, "madeira_routed_events_total") == 5
    assert of(samples, "madeira_unroutable_events_total") == 1
    assert of(samples, "madeira_configuration_refused_total") == 1
    assert of(samples, "madeira_stuck_services_total") == 1
    assert of(samples, "madeira_inbound_request_seconds_bucket", endpoint="bulk", le="0.005") == 1
    assert of(samples, "madeira_pace_agreed_per_second", partner="AB") == 50
    taken = of(samples, "madeira_configuration_taken_timestamp_seconds")
    assert taken is not None
    assert taken <= before
    [version] = [labels for name, labels in samples if name == "madeira_build_info"]
    assert dict(version)["version"]


async def test_counts_reach_others_by_themselves(tmp_path: Path) -> None:
    """Nobody has to flush, in the process that counted or in the one that shows."""
    counting, showing = opened(tmp_path), opened(tmp_path)
    counting.routed()
    # Every look is another one, and takes its time.
    while of(await shown(showing), "madeira_routed_events_total") != 1:
        pass
    counting.close()
    showing.close()


# -- several processes ----------------------------------------------------------------------------------------

_COUNTS = """
import asyncio, sys
from pathlib import Path
from madeira.metrics import Metrics
from sinks.partner import Partner

async def main():
    metrics = Metrics.open(Path(sys.argv[1]))
    metrics.routed(7)
    metrics.configuration_taken()
    metrics.flush()
    print(metrics.slot, flush=True)
    await asyncio.sleep(600)

asyncio.run(main())
"""


def a_process(folder: Path) -> tuple[subprocess.Popen[str], int]:
    """One that has counted seven routed events and taken a configuration; and its slot."""
    process = subprocess.Popen(
        [sys.executable, "-c", _COUNTS, str(folder)], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    return process, int(process.stdout.readline())


def kill(process: subprocess.Popen[str]) -> None:
    """As the kernel does when memory is short."""
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert process.stdout is not None
    process.stdout.close()


async def test_a_killed_process_leaves_its_counts_and_nothing_else(tmp_path: Path) -> None:
    """Counters go on from where it was, in whoever comes in its place; its gauges are gone at once."""
    metrics = opened(tmp_path)
    process, slot = a_process(tmp_path)
    taken = "madeira_configuration_taken_timestamp_seconds"
    samples = await shown(metrics)
    assert of(samples, "madeira_routed_events_total") == 7
    assert of(samples, taken) is not None
    kill(process)
    samples = await shown(metrics)
    assert of(samples, "madeira_routed_events_total") == 7
    assert of(samples, taken) is None

    process, again = a_process(tmp_path)
    assert again == slot
    assert of(await shown(metrics), "madeira_routed_events_total") == 14
    kill(process)
    metrics.close()


async def test_the_only_process_comes_back(tmp_path: Path) -> None:
    """What was counted before is still counted, and what held only then is not shown."""
    process, slot = a_process(tmp_path)
    kill(process)
    metrics = opened(tmp_path)
    assert metrics.slot == slot
    samples = await shown(metrics)
    assert of(samples, "madeira_routed_events_total") == 7
    assert of(samples, "madeira_configuration_taken_timestamp_seconds") is None
    metrics.close()


async def test_files_of_an_earlier_boot_are_removed_by_the_first(tmp_path: Path) -> None:
    """Counts begin anew; who comes second leaves those of the living alone."""
    earlier = opened(tmp_path)
    earlier.routed(100)
    earlier.close()
    (tmp_path / "origin").write_text("another boot\n")
    first = opened(tmp_path)
    first.routed(2)
    first.flush()
    (tmp_path / "origin").write_text("another boot\n")
    second = opened(tmp_path)
    assert second.slot != first.slot
    assert of(await shown(second), "madeira_routed_events_total") == 2
    first.close()
    second.close()


async def test_a_torn_file_costs_only_itself(tmp_path: Path) -> None:
    """A file that cannot be read is left out and counted; the process that gets its slot begins it anew."""
    metrics = opened(tmp_path)
    metrics.routed(3)
    (tmp_path / "counter_1.db").write_bytes(b"\xff\xff\x00\x00" + b"\xff" * 64)
    assert of(await shown(metrics), "madeira_routed_events_total") == 3
    samples = await shown(metrics)
    assert of(samples, "madeira_scrape_errors_total", store="files") == 1
    other = opened(tmp_path)
    assert other.slot == 1
    other.routed()
    other.close()
    assert of(await shown(metrics), "madeira_routed_events_total") == 4
    metrics.close()


async def test_a_closed_process_is_no_gauge(tmp_path: Path) -> None:
    """Leaving in order is like dying, and counting afterwards harms nobody."""
    first, second = opened(tmp_path), opened(tmp_path)
    first.settled("AB", "live", ended())
    first.close()
    first.close()
    samples = await shown(second)
    assert of(samples, "madeira_attempts_settled_total", partner="AB", lane="live", outcome="succeeded") == 1
    assert of(samples, "madeira_pace_used_ratio", partner="AB") is None
    second.close()


# -- what the stores say --------------------------------------------------------------------------------------


@pytest.fixture
async def stores(database_url: str, redis_url: str, key_prefix: str) -> AsyncIterator[Night]:
    """Two partners in generation 1."""
    async with night(database_url, redis_url, key_prefix, high=3, low=1) as found:
        yield found


def event(event_id: str, created_at: datetime) -> Inbound:
    """A live event."""
    return Inbound(
        event_id=event_id,
        event_type="payment",
        source="shop",
        tenant="default",
        payload=b"{}",
        body_sha256=b"0" * 32,
        trace_id="0" * 32,
        created_at=created_at,
    )


async def test_backlogs_and_ages(stores: Night, metrics: Metrics) -> None:
    """Per lane and place, the oldest by its acceptance, each partner with a number also where nothing waits."""
    metrics.adopt(stores.partners, {"shop"})
    metrics.watch(stores.pool, stores.transit)
    await stores.release(5)
    await stores.sql("UPDATE batch SET released_at = now() - interval '100 s'")
    assert await stores.feeder.step(1) == 3
    await inbound.make_groups(stores.transit)
    await inbound.ingest(stores.transit, [event("1", NOW)], remember=[timedelta(minutes=1)])
    live = event("2", NOW - timedelta(days=1)).to_partner("AB")
    await stores.transit.scripts.feed(
        stores.keys(),
        generation=1,
        lane="live",
        expect_last="",
        read_at_us=await gauges.now_us(stores.transit.redis),
        rows=[Feed(entry=None, delivery=live.delivery, attempts=0, unknowns=0, possible_duplicate=False,
                   envelope=encode(live))],
    )  # fmt: skip
    await stores.sql(
        """WITH e AS (
               INSERT INTO event (source, event_id, event_type, body, body_sha256, trace_id, created_at)
               SELECT 'shop', n::text, 'payment', '', '', '', now() FROM generate_series(1, 4) AS n RETURNING id
           ), d AS (
               INSERT INTO delivery (event, partner, updated_at, due_at, fed_generation)
               SELECT id, 'CD', now(), now() - interval '50 s', nullif(mod(id, 2)::integer, 1) FROM e
           ), u AS (
               INSERT INTO unrouted (event, since, reason)
               SELECT id, now() - interval '9 s', nullif(mod(id, 2), 0) FROM e
           )
           INSERT INTO conflict (source, event_id, tenant, event_type, trace_id, body, body_sha256)
           SELECT 'shop', '1', 'default', 'payment', '', '', ''"""
    )
    samples = await shown(metrics)
    backlog = {
        (partner, lane, place): of(samples, "madeira_backlog", partner=partner, lane=lane, place=place)
        for partner in ("AB", "CD")
        for lane in ("live", "batch")
        for place in ("fed", "unfed")
    }
    assert backlog == {
        ("AB", "live", "fed"): 1, ("AB", "live", "unfed"): 0, ("AB", "batch", "fed"): 3, ("AB", "batch", "unfed"): 2,
        ("CD", "live", "fed"): 0, ("CD", "live", "unfed"): 4, ("CD", "batch", "fed"): 0, ("CD", "batch", "unfed"): 0,
    }  # fmt: skip
    oldest = "madeira_backlog_oldest_seconds"
    age = of(samples, oldest, partner="AB", lane="live")
    assert age is not None
    assert age >= 86_400
    assert (of(samples, oldest, partner="CD", lane="live") or 0) >= 50
    assert of(samples, oldest, partner="CD", lane="batch") == 0
    assert (of(samples, oldest, partner="AB", lane="batch") or 0) >= 100
    assert of(samples, "madeira_inbound_waiting", store="redis") == 1
    assert of(samples, "madeira_inbound_waiting", store="postgres") == 2
    assert (of(samples, "madeira_inbound_oldest_seconds", store="postgres") or 0) >= 9
    assert of(samples, "madeira_inbound_oldest_seconds", store="redis") is not None
    assert of(samples, "madeira_unroutable") == 2
    assert of(samples, "madeira_conflicts") == 1


async def test_whose_breaker_is_open(stores: Night, metrics: Metrics) -> None:
    """1 for a partner that is down, 0 for the others."""
    metrics.adopt(stores.partners, {"shop"})
    metrics.watch(stores.pool, stores.transit)
    await stores.transit.redis.hset(stores.keys("CD").pace, "broken_since", 1)

    samples = await shown(metrics)

    assert of(samples, "madeira_breaker_open", partner="AB") == 0
    assert of(samples, "madeira_breaker_open", partner="CD") == 1


async def test_the_dead_are_counted_until_they_are_not(stores: Night, metrics: Metrics) -> None:
    """By cause; a late success of one takes it off, and a delivered one never was on."""
    metrics.adopt(stores.partners, ())
    metrics.watch(stores.pool, stores.transit)
    await stores.release(3)
    await stores.feeder.step(1)
    first, second, third = await stores.take(3)
    for entry, state in ((first, State.DEAD), (second, State.DEAD), (third, State.SUCCEEDED)):
        await stores.settle(settlement(entry, attempt(entry, state)))
    await stores.recorder.step(100)
    assert of(await shown(metrics), "madeira_dead_letters", partner="AB", cause="refused") == 2
    await stores.sql("UPDATE delivery SET status = 'succeeded', cause = NULL WHERE row_number = 1")
    assert of(await shown(metrics), "madeira_dead_letters", partner="AB", cause="refused") == 1


async def test_an_outcome_other_than_death_leaves_the_index_of_the_dead_alone(stores: Night) -> None:
    """Or every delivery of the night would have to be written to its indexes."""
    columns = await stores.sql(
        """SELECT DISTINCT a.attname FROM pg_index AS i
           JOIN pg_depend AS d ON d.objid = i.indexrelid AND d.refobjid = i.indrelid
           JOIN pg_attribute AS a ON a.attrelid = i.indrelid AND a.attnum = d.refobjsubid
           WHERE i.indrelid = 'delivery'::regclass"""
    )
    # due_at is null before and after a batch row's first success.
    assert {name for (name,) in columns} & {"status", "attempts", "updated_at", "last_status_code"} == set()


async def test_a_store_that_is_away_is_left_out(database_url: str, tmp_path: Path) -> None:
    """The rest is shown, and each failed look is counted."""
    pool = await open_pool(database_url, name="test", connections=1)
    transit = Transit.open("redis://127.0.0.1:1/0")
    metrics = Metrics(tmp_path, keep=NEVER, look_at_most=timedelta(seconds=60))
    metrics.adopt({"AB": AB}, ())
    metrics.watch(pool, transit)
    for failed in (1, 2):
        samples = await shown(metrics)
        assert of(samples, "madeira_scrape_errors_total", store="redis") == failed
    assert of(samples, "madeira_scrape_errors_total", store="postgres") is None
    assert of(samples, "madeira_inbound_waiting", store="redis") is None
    assert of(samples, "madeira_backlog", partner="AB", lane="live", place="fed") is None
    assert of(samples, "madeira_backlog", partner="AB", lane="live", place="unfed") == 0
    metrics.close()
    await pool.close()
    await transit.close()


async def test_a_frozen_store_holds_nobody_up(
    database_url: str, private_valkey: PrivateValkey, tmp_path: Path
) -> None:
    """The answer comes without it; when it goes on, so do its numbers."""
    pool = await open_pool(database_url, name="test", connections=1)
    transit = Transit.open(private_valkey.url)
    metrics = Metrics(tmp_path, keep=NEVER, look_at_most=timedelta(seconds=0.05))
    metrics.adopt({"AB": AB}, ())
    metrics.watch(pool, transit)
    pid = private_valkey.pid()
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    try:
        samples = await shown(metrics)
    finally:
        os.kill(pid, signal.SIGCONT)
    assert of(samples, "madeira_scrape_errors_total", store="redis") == 1
    assert of(samples, "madeira_inbound_waiting", store="redis") is None
    assert of(samples, "madeira_pace_agreed_per_second", partner="AB") == 50
    while of(await shown(metrics), "madeira_inbound_waiting", store="redis") is None:
        pass
    metrics.close()
    await pool.close()
    await transit.close()


async def test_scraping_often_looks_once_a_second(stores: Night, tmp_path: Path) -> None:
    """Whoever scrapes within that time, at once or again, gets the same text."""
    metrics = Metrics(tmp_path, keep=timedelta(hours=1))
    metrics.adopt(stores.partners, ())
    metrics.watch(stores.pool, stores.transit)
    texts = await asyncio.gather(*(metrics.render() for _ in range(20)))
    await stores.release(5)
    assert {*texts, await metrics.render()} == {texts[0]}
    metrics.close()


# -- names ----------------------------------------------------------------------------------------------------


def test_names_are_as_prometheus_wants_them() -> None:
    """Counters end in _total, nothing else does; times are in seconds; each has its own name and a sentence."""
    assert len({each.name for each in METRICS}) == len(METRICS)
    for each in METRICS:
        assert re.fullmatch(r"madeira_[a-z_]+", each.name)
        assert each.name.endswith("_total") == (each.shape is Shape.COUNTER), each.name
        assert (each.shape is Shape.HISTOGRAM) == bool(each.bounds), each.name
        assert not each.bounds or each.name.endswith("_seconds")
        assert list(each.bounds) == sorted(set(each.bounds))
        assert each.help.endswith((".", ")."))


def test_the_type_of_the_answer_is_the_librarys() -> None:
    """Or Prometheus would read the text by other rules."""
    assert CONTENT_TYPE == CONTENT_TYPE_LATEST


def test_operations_lists_every_metric_and_no_other() -> None:
    """With its labels, and what alerts and files name exists."""
    text = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
    section = text.split("\n## Metrics\n")[1].split("\n## ")[0]
    rows = re.findall(r"^\| `(madeira_[a-z_]+)` \| ([^|]*)\|", section, re.MULTILINE)
    assert {name: tuple(re.findall(r"`([a-z]+)`", labels)) for name, labels in rows} == {
        each.name: each.labels for each in METRICS
    }
    alerts = (ROOT / "deploy" / "prometheus" / "alerts.yml").read_text(encoding="utf-8")
    known = {each.name for each in METRICS} | {
        f"{each.name}_{part}"
        for each in METRICS
        for part in ("bucket", "sum", "count")
        if each.shape is Shape.HISTOGRAM
    }
    assert set(re.findall(r"madeira_[a-z_]+", section + alerts)) <= known
    for expression in re.findall(r"^ *expr: (.+)$", alerts, re.MULTILINE):
        assert expression in section
