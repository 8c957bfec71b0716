"""Every metric that Madeira has, its name, its labels and what they may be. Nobody else names one.

Several processes of a host count into one folder: each has the files of a *slot*, which is its own while it holds
that slot's lock. The kernel takes a lock from whoever dies, so nobody has to notice a death: the next process gets
the slot and counts on from where the files stand. The files are those of prometheus_client, which adds them up;
only what says whose they are is ours, for a process id may come twice (in two containers, or after a restart).
"""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
import zlib
from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from enum import Enum, StrEnum
from importlib.metadata import version
from pathlib import Path
from time import monotonic, time
from typing import Final, Protocol, cast

from prometheus_client import CollectorRegistry, Metric, generate_latest
from prometheus_client.mmap_dict import MmapedDict, mmap_key
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.registry import Collector
from psycopg_pool import AsyncConnectionPool

from madeira.backlog import BATCH, COUNTED, Backlog, in_record, in_transit
from pipelines.live_source import Durability
from sinks.partner import Partner
from streams.delivery import Attempt, Cause, Kind, State
from streams.keys import LIVE
from streams.transit import Transit

log = logging.getLogger(__name__)

CONTENT_TYPE: Final = "text/plain; version=1.0.0; charset=utf-8"
"""What `Metrics.render` is, for the header."""

OTHER: Final = "other"
"""The source of whoever is not in jobs.toml: anybody may claim any name, and each would be a series for ever."""

PACE_WINDOW_S: Final = 10
_FLUSH_AFTER_S: Final = 0.25

_LATENCIES: Final = (0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_WAITS: Final = (*_LATENCIES, 60.0, 300.0, 900.0, 3600.0, 4 * 3600.0, 8 * 3600.0)
_REQUESTS: Final = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)


class Refusal(StrEnum):
    """Why an event was not accepted."""

    FORMAT = "format"
    SIGNATURE = "signature"
    SLOW = "slow"
    CONFLICT = "conflict"
    SIZE = "size"
    CONTENT = "content"
    RATE = "rate"
    STORE = "store"
    FULL = "full"
    NOT_READY = "not_ready"
    LEAVING = "leaving"


class Endpoint(StrEnum):
    """How events came in: one a request, or many."""

    ONE = "one"
    BULK = "bulk"


class Shape(Enum):
    """What a metric is to Prometheus, and which file of a slot holds it; None: read at each scrape."""

    COUNTER = ("counter", "counter")
    HISTOGRAM = ("histogram", "histogram")
    SUM = ("gauge", "gauge_livesum")
    """A gauge that adds up over the processes that live."""
    NEWEST = ("gauge", "gauge_livemax")
    """A gauge that is the largest of those of the processes that live."""
    STATE = ("gauge", None)
    """A gauge that one look at the stores gives."""

    def __init__(self, kind: str, file: str | None) -> None:
        self.kind = kind
        """As in the TYPE line."""
        self.file = file
        """The beginning of the file's name, by which prometheus_client knows how to add it up."""


class _Cells(Protocol):
    """Numbers by name in a file, as prometheus_client's `MmapedDict` keeps them; which says no types."""

    def read_value(self, key: str) -> tuple[float, float]: ...
    def write_value(self, key: str, value: float, timestamp: float) -> None: ...
    def close(self) -> None: ...


_cells = cast("Callable[[str], _Cells]", MmapedDict)
_added_up = cast("Callable[[list[str]], Iterable[Metric]]", MultiProcessCollector.merge)


@dataclass(frozen=True, slots=True, eq=False)
class Named:
    """One metric. `bounds` are the upper bounds of a histogram's buckets, in seconds."""

    name: str
    shape: Shape
    help: str
    labels: tuple[str, ...] = ()
    bounds: tuple[float, ...] = ()


EVENTS: Final = Named(
    "madeira_inbound_events_total",
    Shape.COUNTER,
    "Live events that were answered as accepted, or as duplicates of one that was.",
    ("source", "durability", "verdict"),
)
REFUSED: Final = Named(
    "madeira_inbound_refused_total",
    Shape.COUNTER,
    "Live events that were not accepted.",
    ("source", "reason"),
)
REQUESTS: Final = Named(
    "madeira_inbound_request_seconds",
    Shape.HISTOGRAM,
    "From the head of a request with events to its answer.",
    ("endpoint",),
    _REQUESTS,
)
ROUTED: Final = Named(
    "madeira_routed_events_total", Shape.COUNTER, "Events for which the router wrote deliveries."
)
UNROUTABLE_MET: Final = Named(
    "madeira_unroutable_events_total", Shape.COUNTER, "Events that no route took, or whose route failed."
)
SETTLED: Final = Named(
    "madeira_attempts_settled_total",
    Shape.COUNTER,
    "Attempts that ended, by outcome: succeeded, retry, dead, unknown.",
    ("partner", "lane", "outcome"),
)
TRIES: Final = Named(
    "madeira_deliveries_ended_total",
    Shape.COUNTER,
    "Deliveries that were delivered or died, by how many attempts it took: 1, 2, 3-5, more.",
    ("partner", "attempts"),
)
DIED: Final = Named(
    "madeira_dead_letters_total", Shape.COUNTER, "Deliveries that died.", ("partner", "cause")
)
DOUBTFUL: Final = Named(
    "madeira_possible_duplicates_total",
    Shape.COUNTER,
    "Attempts whose headers left though an earlier one of the same delivery may have arrived.",
    ("partner",),
)
WAITED: Final = Named(
    "madeira_accept_to_sent_seconds",
    Shape.HISTOGRAM,
    "From an event's acceptance (or its batch's loading) until the headers of its first attempt left.",
    ("partner", "lane"),
    _WAITS,
)
SENDING: Final = Named(
    "madeira_send_seconds",
    Shape.HISTOGRAM,
    "From the headers of a send to its answer or its failure.",
    ("partner",),
    _LATENCIES,
)
PACE_USED: Final = Named(
    "madeira_pace_used_ratio",
    Shape.SUM,
    f"Sends of the last {PACE_WINDOW_S} s over those agreed; of several hosts the sum.",
    ("partner",),
)
CONFIGURATION_REFUSED: Final = Named(
    "madeira_configuration_refused_total", Shape.COUNTER, "Changes of jobs.toml that had mistakes."
)
CONFIGURATION_TAKEN: Final = Named(
    "madeira_configuration_taken_timestamp_seconds",
    Shape.NEWEST,
    "When a process that still runs last took a jobs.toml, by Unix time.",
)
STUCK: Final = Named(
    "madeira_stuck_services_total", Shape.COUNTER, "Services that did not come back from a step."
)
SCRAPE_ERRORS: Final = Named(
    "madeira_scrape_errors_total",
    Shape.COUNTER,
    "Looks at a store (redis, postgres) or at a file of counts that gave nothing; its gauges are left out then.",
    ("store",),
)
PACE_AGREED: Final = Named(
    "madeira_pace_agreed_per_second", Shape.STATE, "Sends a second that jobs.toml allows.", ("partner",)
)
BREAKER: Final = Named(
    "madeira_breaker_open",
    Shape.STATE,
    "1 while a partner is down and only probes are sent, else 0.",
    ("partner",),
)
BACKLOG: Final = Named(
    "madeira_backlog",
    Shape.STATE,
    "Deliveries that wait: fed (in Redis, in hand or until a retry) and unfed (in PostgreSQL only, live ones up to "
    f"{COUNTED:,}).",
    ("partner", "lane", "place"),
)
OLDEST: Final = Named(
    "madeira_backlog_oldest_seconds",
    Shape.STATE,
    "Age of the oldest delivery that waits, since its acceptance or its batch's release.",
    ("partner", "lane"),
)
INBOUND: Final = Named(
    "madeira_inbound_waiting",
    Shape.STATE,
    "Accepted events that no router has dealt with yet; those of durability postgres are in both stores.",
    ("store",),
)
INBOUND_OLDEST: Final = Named(
    "madeira_inbound_oldest_seconds", Shape.STATE, "Age of the oldest of them.", ("store",)
)
DEAD: Final = Named(
    "madeira_dead_letters", Shape.STATE, "Deliveries that are dead now.", ("partner", "cause")
)
UNROUTABLE: Final = Named("madeira_unroutable", Shape.STATE, "Events that are kept without a partner.")
CONFLICTS: Final = Named(
    "madeira_conflicts", Shape.STATE, "Events kept aside: an accepted id came again with another body."
)
BUILD: Final = Named("madeira_build_info", Shape.STATE, "1, with the version that answers.", ("version",))

METRICS: Final = (
    EVENTS, REFUSED, REQUESTS, INBOUND, INBOUND_OLDEST, ROUTED, UNROUTABLE_MET, UNROUTABLE, CONFLICTS,
    BREAKER, BACKLOG, OLDEST, SETTLED, TRIES, DIED, DEAD, DOUBTFUL, WAITED, SENDING, PACE_AGREED, PACE_USED,
    CONFIGURATION_REFUSED, CONFIGURATION_TAKEN, STUCK, SCRAPE_ERRORS, BUILD,
)  # fmt: skip
"""All of them, in the order of docs/operations.md."""

_TRIES: Final = ("1", "2", "3-5", "3-5", "3-5")
_MORE: Final = "more"
_LEFT: Final = frozenset({State.SUCCEEDED, State.DEAD})


class Metrics:
    """What one process counts, and what all of them together show. Its methods are called in the event loop.

    Counts reach the other processes within a quarter of a second; who is killed loses that much. After a fork the
    child opens its own.
    """

    def __init__(
        self,
        folder: Path,
        *,
        keep: timedelta = timedelta(seconds=1),
        look_at_most: timedelta = timedelta(seconds=2),
        clock: Callable[[], float] = monotonic,
    ) -> None:
        """`clock` tells the seconds by which the last ten are counted."""
        self._folder = folder
        self._clock = clock
        self._keep_s = keep.total_seconds()
        self._look_at_most_s = look_at_most.total_seconds()
        self._counts: dict[tuple[Named, tuple[str, ...]], float] = {}
        self._buckets: dict[tuple[Named, tuple[str, ...]], list[float]] = {}
        """By histogram and labels: the new observations of each bucket, and in the last place their sum."""
        self._gauges: dict[tuple[Named, tuple[str, ...]], float] = {}
        self._keys: dict[tuple[Named, tuple[str, ...]], list[tuple[_Cells, str]]] = {}
        self._partners: Mapping[str, Partner] = {}
        self._sources: frozenset[str] = frozenset()
        self._stores: tuple[AsyncConnectionPool, Transit] | None = None
        self._sent: dict[str, deque[tuple[int, int]]] = {}
        """By partner: second and how many sends ended in it, for the last ten."""
        self._sent_now: Counter[str] = Counter()
        self._flush: asyncio.TimerHandle | None = None
        self._rendering = asyncio.Lock()
        self._text, self._rendered_at = b"", float("-inf")
        self._looks: dict[str, asyncio.Task[Backlog]] = {}
        with _alone(folder):
            self._lock, self.slot = _take_slot(folder)
            self._files = {
                shape: _open_file(folder / f"{shape.file}_{self.slot}.db") for shape in Shape if shape.file
            }

    @classmethod
    def open(cls, folder: Path) -> Metrics:
        """Count into `folder`, which all processes of this host share. Once a process; raises OSError."""
        return cls(folder)

    def adopt(self, partners: Mapping[str, Partner], sources: Collection[str]) -> None:
        """The configuration from now on: other sources count as `other`.

        All that may be counted of a partner or a source is there from now on, as 0: a rate needs a number before the
        first, and making hundreds of them takes longer than a send may be late.
        """
        self._partners = partners
        self._sources = frozenset(sources)
        for metric in (ROUTED, UNROUTABLE_MET, CONFIGURATION_REFUSED, STUCK):
            self._cells(metric, ())
        for endpoint in Endpoint:
            self._cells(REQUESTS, (endpoint,))
        for source in (*sources, OTHER):
            for reason in Refusal:
                self._cells(REFUSED, (source, reason))
        for partner in partners:
            for lane in (LIVE, BATCH):
                self._cells(WAITED, (partner, lane))
                for outcome in Kind:
                    self._cells(SETTLED, (partner, lane, outcome))
            for tries in dict.fromkeys((*_TRIES, _MORE)):
                self._cells(TRIES, (partner, tries))
            for cause in Cause:
                self._cells(DIED, (partner, cause))
            self._cells(DOUBTFUL, (partner,))
            self._cells(SENDING, (partner,))

    def watch(self, pool: AsyncConnectionPool, transit: Transit) -> None:
        """Read backlogs and ages from these stores at `render`. Without it they are left out."""
        self._stores = pool, transit

    # -- counting -----------------------------------------------------------------------------------------

    def accepted(self, source: str, durability: Durability, n: int = 1) -> None:
        """So many new events got their 202."""
        self._count(EVENTS, (self._source(source), durability, "accepted"), n)

    def duplicate(self, source: str, durability: Durability, n: int = 1) -> None:
        """So many events were known already."""
        self._count(EVENTS, (self._source(source), durability, "duplicate"), n)

    def refused(self, source: str, reason: Refusal, n: int = 1) -> None:
        """So many events were not accepted."""
        self._count(REFUSED, (self._source(source), reason), n)

    def ingested(self, endpoint: Endpoint, seconds: float) -> None:
        """A request with events was answered after so long."""
        self._observe(REQUESTS, (endpoint,), seconds)

    def settled(self, partner: str, lane: str, attempt: Attempt) -> None:
        """A send ended; `pipelines.dispatch.Meter`. `lane` is `live` or `batch:…`."""
        shown = LIVE if lane == LIVE else BATCH
        self._count(SETTLED, (partner, shown, attempt.outcome))
        number, state = attempt.number, attempt.state
        if state in _LEFT:
            self._count(TRIES, (partner, _TRIES[number - 1] if number <= len(_TRIES) else _MORE))
            if state is State.DEAD and attempt.cause is not None:
                self._count(DIED, (partner, attempt.cause))
        sent_at = attempt.sent_at
        if sent_at is not None:
            self._sent_now[partner] += 1
            self._observe(SENDING, (partner,), attempt.elapsed_ms / 1000)
            if number == 1:
                self._observe(WAITED, (partner, shown), (sent_at - attempt.created_at).total_seconds())
            if attempt.possible_duplicate:
                self._count(DOUBTFUL, (partner,))

    def routed(self, n: int = 1) -> None:
        """So many events were routed to one partner at least."""
        self._count(ROUTED, (), n)

    def unroutable(self, n: int = 1) -> None:
        """No route took so many events, or a route failed."""
        self._count(UNROUTABLE_MET, (), n)

    def configuration_refused(self) -> None:
        """A changed jobs.toml had mistakes."""
        self._count(CONFIGURATION_REFUSED, ())

    def configuration_taken(self) -> None:
        """A jobs.toml is in force from now on."""
        self._gauges[CONFIGURATION_TAKEN, ()] = time()
        self._flush_soon()

    def stuck(self) -> None:
        """A service did not come back; written at once, for the process is about to end."""
        self._count(STUCK, ())
        self.flush()

    def _source(self, name: str) -> str:
        return name if name in self._sources else OTHER

    def _count(self, metric: Named, labels: tuple[str, ...], n: float = 1) -> None:
        key = (metric, labels)
        self._counts[key] = self._counts.get(key, 0.0) + n
        if self._flush is None:
            self._flush_soon()

    def _observe(self, metric: Named, labels: tuple[str, ...], seconds: float) -> None:
        key = (metric, labels)
        found = self._buckets.get(key)
        if found is None:
            found = self._buckets[key] = [0.0] * (len(metric.bounds) + 2)
        found[bisect_left(metric.bounds, seconds)] += 1
        found[-1] += seconds
        if self._flush is None:
            self._flush_soon()

    # -- the files ----------------------------------------------------------------------------------------

    def _flush_soon(self) -> None:
        if self._flush is None:
            self._flush = asyncio.get_running_loop().call_later(_FLUSH_AFTER_S, self.flush)

    def flush(self) -> None:
        """Let the other processes see everything that was counted so far."""
        if self._flush is not None:
            self._flush.cancel()
            self._flush = None
        if self._lock < 0:
            return
        for key, n in self._counts.items():
            _add(self._cells(*key)[0], n)
        self._counts.clear()
        for key, numbers in self._buckets.items():
            for cell, n in zip(self._cells(*key), numbers, strict=True):
                if n:
                    _add(cell, n)
        self._buckets.clear()
        self._use_pace(int(self._clock()))
        for key, value in self._gauges.items():
            file, name = self._cells(*key)[0]
            file.write_value(name, value, 0.0)
        self._gauges.clear()

    def _use_pace(self, now: int) -> None:
        """The share of the agreed sends that ended in the last ten seconds; looked at again while it is above 0."""
        for partner, n in self._sent_now.items():
            seconds = self._sent.setdefault(partner, deque())
            if seconds and seconds[-1][0] == now:
                seconds[-1] = (now, seconds[-1][1] + n)
            else:
                seconds.append((now, n))
        self._sent_now.clear()
        for partner, seconds in list(self._sent.items()):
            while seconds and seconds[0][0] <= now - PACE_WINDOW_S:
                seconds.popleft()
            known = self._partners.get(partner)
            agreed = PACE_WINDOW_S * known.qps if known else 0
            self._gauges[PACE_USED, (partner,)] = sum(n for _, n in seconds) / agreed if agreed else 0.0
            if not seconds:
                del self._sent[partner]
        if self._sent:
            self._flush_soon()

    def _cells(self, metric: Named, labels: tuple[str, ...]) -> list[tuple[_Cells, str]]:
        """Where the numbers of one series are: one, or a histogram's buckets and then its sum."""
        cells = self._keys.get((metric, labels))
        if cells is None:
            file = self._files[metric.shape]
            cells = [(file, key) for key in _keys(metric, labels)]
            for _, key in cells:
                file.read_value(key)  # makes it: a histogram shows its empty buckets, too
            self._keys[metric, labels] = cells
        return cells

    def close(self) -> None:
        """The end of this process: nothing of it that holds only now stays, its counts do."""
        if self._lock < 0:
            return
        self.flush()
        if self._flush is not None:
            self._flush.cancel()
            self._flush = None
        for look in self._looks.values():
            look.cancel()
        for file in self._files.values():
            file.close()
        with _alone(self._folder):
            _remove_live(self._folder, self.slot)
            os.close(self._lock)
        self._lock = -1

    # -- showing ------------------------------------------------------------------------------------------

    async def render(self) -> bytes:
        """All metrics of all processes of this host, as Prometheus reads them; at most a second old.

        Takes 2 s at most for the stores; what they do not say by then is left out.
        """
        async with self._rendering:
            if monotonic() - self._rendered_at >= self._keep_s:
                states = await self._look()
                self.flush()
                # Apart: it takes half a second for eight processes of a hundred partners.
                text, broken = await asyncio.to_thread(_written, self._folder, states)
                if broken:
                    self._failed("files", f"{broken} cannot be read")
                self._text, self._rendered_at = text, monotonic()
            return self._text

    async def _look(self) -> list[Metric]:
        """The gauges of this moment: those that need no store, and those of each store that answers in time."""
        found = Backlog()
        if self._stores is not None:
            pool, transit = self._stores
            tenants = {name: partner.tenant for name, partner in self._partners.items()}
            # A store that is frozen has one look that waits for it, however often somebody scrapes.
            self._looks = {store: look for store, look in self._looks.items() if not look.done()}
            if "redis" not in self._looks:
                self._looks["redis"] = asyncio.create_task(in_transit(transit, tenants))
            if "postgres" not in self._looks:
                self._looks["postgres"] = asyncio.create_task(in_record(pool, tenants))
            done, _ = await asyncio.wait(self._looks.values(), timeout=self._look_at_most_s)
            for store, look in self._looks.items():
                if look not in done:
                    look.cancel()
                    self._failed(store, f"no answer within {self._look_at_most_s:g} s")
                elif look.cancelled() or (error := look.exception()) is not None:
                    self._failed(store, "given up" if look.cancelled() else str(error))
                else:
                    found = found.with_(look.result())
        return list(self._states(found))

    def _failed(self, store: str, error: str) -> None:
        self._count(SCRAPE_ERRORS, (store,))
        log.warning("scrape_failed", extra={"fields": {"store": store, "error": error}})

    def _states(self, found: Backlog) -> Iterator[Metric]:
        yield _gauge(BUILD, {(version("madeira"),): 1.0})
        yield _gauge(PACE_AGREED, {(name,): float(each.qps) for name, each in self._partners.items()})
        for metric, values in (
            (INBOUND, found.inbound),
            (INBOUND_OLDEST, found.inbound_oldest_s),
            (BACKLOG, found.waiting),
            (OLDEST, found.oldest_s),
            (DEAD, found.dead),
            (UNROUTABLE, found.unroutable),
            (CONFLICTS, found.conflicts),
            (BREAKER, found.broken),
        ):
            if values:
                yield _gauge(metric, values)


class _Given(Collector):
    """Hands on what was collected."""

    def __init__(self, metrics: Collection[Metric]) -> None:
        self._metrics = metrics

    def collect(self) -> Iterable[Metric]:
        return self._metrics


def _written(folder: Path, states: Collection[Metric]) -> tuple[bytes, int]:
    """Everything as text, and how many files cannot be read."""
    merged, broken = _merge(folder)
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Given([*merged, *states]))
    return generate_latest(registry), broken


def _gauge(metric: Named, values: Mapping[tuple[str, ...], float]) -> Metric:
    found = Metric(metric.name, metric.help, metric.shape.kind)
    for labels, value in sorted(values.items()):
        found.add_sample(metric.name, dict(zip(metric.labels, labels, strict=True)), value)
    return found


def _keys(metric: Named, labels: tuple[str, ...]) -> Iterator[str]:
    """How prometheus_client names the numbers of a series in its files."""
    names, values = list(metric.labels), [str(label) for label in labels]
    assert len(names) == len(values), f"{metric.name} has the labels {names}"
    match metric.shape:
        case Shape.COUNTER:
            yield mmap_key(metric.name.removesuffix("_total"), metric.name, names, values, metric.help)
        case Shape.HISTOGRAM:
            for bound in (*metric.bounds, float("inf")):
                at = [*values, str(bound)]
                yield mmap_key(metric.name, f"{metric.name}_bucket", [*names, "le"], at, metric.help)
            yield mmap_key(metric.name, f"{metric.name}_sum", names, values, metric.help)
        case _:
            yield mmap_key(metric.name, metric.name, names, values, metric.help)


def _add(cell: tuple[_Cells, str], n: float) -> None:
    file, key = cell
    value, _ = file.read_value(key)
    file.write_value(key, value + n, 0.0)


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Nobody else takes a slot, leaves one, or looks who lives."""
    folder.mkdir(parents=True, exist_ok=True)
    lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


def _take_slot(folder: Path) -> tuple[int, int]:
    """The first slot that nobody holds, locked. What only its last holder could say is removed.

    Where nobody holds any, and the files are from before the machine was started or of another set of metrics, all
    counts begin anew: they may be torn, or no longer mean the same.
    """
    known = sorted(int(path.stem.removeprefix("slot-")) for path in folder.glob("slot-*.lock"))
    origin = _origin()
    if not any(_lives(folder, slot) for slot in known):
        written = folder / "origin"
        if not written.exists() or written.read_text() != origin:
            for path in folder.glob("*.db"):
                path.unlink()
            written.write_text(origin)
    slot = 0
    while (lock := _try_lock(folder, slot)) is None:
        slot += 1
    _remove_live(folder, slot)
    return lock, slot


def _origin() -> str:
    boot = Path("/proc/sys/kernel/random/boot_id")
    shapes = repr([(each.name, each.shape.name, each.labels, each.bounds) for each in METRICS])
    return f"{boot.read_text().strip() if boot.exists() else ''} {zlib.crc32(shapes.encode()):08x}\n"


def _try_lock(folder: Path, slot: int) -> int | None:
    lock = os.open(folder / f"slot-{slot}.lock", os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        return None
    return lock


def _lives(folder: Path, slot: int) -> bool:
    lock = _try_lock(folder, slot)
    if lock is not None:
        os.close(lock)
    return lock is None


def _remove_live(folder: Path, slot: int) -> None:
    for path in folder.glob(f"gauge_live*_{slot}.db"):
        path.unlink()


def _open_file(path: Path) -> _Cells:
    """The file, from where it stands; anew where it is torn: its counts are lost either way."""
    if path.exists() and not _readable(str(path)):
        path.unlink()
    return _cells(str(path))


def _merge(folder: Path) -> tuple[list[Metric], int]:
    """The counts of all slots and the gauges of those whose process lives; and how many files cannot be read."""
    with _alone(folder):
        for path in folder.glob("gauge_live*.db"):
            slot = int(path.stem.rpartition("_")[2])
            if not _lives(folder, slot):
                path.unlink()
        files = sorted(str(path) for path in folder.glob("*.db"))
    try:
        return _sum(files), 0
    except Exception:  # noqa: BLE001 - a torn file makes the library raise anything; without it the rest is right
        good = [file for file in files if _readable(file)]
        return _sum(good), len(files) - len(good)


def _sum(files: list[str]) -> list[Metric]:
    return list(_added_up(files))


def _readable(file: str) -> bool:
    try:
        _sum([file])
    except Exception:  # noqa: BLE001 - see _merge
        return False
    return True
