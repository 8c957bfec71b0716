"""One night's run of a job: from the source's snapshot to a batch that is released whole, or not at all.

Everything that a run writes becomes visible in one commit, with the batch's state: a run that is killed anywhere
leaves nothing behind, and whoever runs the same job and date next begins the load again.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import date, datetime
from enum import StrEnum

import psycopg

from pipelines.gate import Refuse, decide
from pipelines.job import Job
from pipelines.lease import BatchRow, Lease, claim, renewed
from pipelines.load import Loading, NotStraight
from pipelines.manifest import Group, Line, Manifest, Sum, draw_up
from pipelines.source import Snapshot, UntranslatableRow, snapshot
from pipelines.stage import Offender, Offenders, Stage
from sinks.statement import statement
from streams.checkpoint import checkpoint as failpoint
from streams.errors import BatchRefused, ConfigurationError, MadeiraError, StoreUnavailable

Checkpoint = Callable[[str], None]

# Between finding out what is known and loading the rest another batch of the same job may commit.
_LOAD_TRIES = 3

_NO_OFFENDERS = Offenders(0, ())

_log = logging.getLogger(__name__)


class BatchState(StrEnum):
    """What a batch's row says."""

    RUNNING = "running"
    RELEASED = "released"
    FAILED = "failed"
    HELD = "held"


@dataclass(frozen=True, slots=True)
class BatchResult:
    """How a run ended, or why there was nothing to run.

    `did_nothing`: the batch was already released (or held), or `running_by` runs it now. `lines` are the manifest.
    `offender_count` rows cannot become events, `offenders` are the first of them; `reasons` is the gate's refusal.
    """

    job: str
    business_date: date
    batch_id: int
    revision: int
    state: BatchState
    did_nothing: bool
    lines: tuple[Line, ...] = ()
    ids_sha256: str | None = None
    snapshot_at: datetime | None = None
    offender_count: int = 0
    offenders: tuple[Offender, ...] = ()
    reasons: tuple[str, ...] = ()
    running_by: str | None = None

    @property
    def manifest(self) -> Manifest:
        """Counts and sums of the batch."""
        return Manifest(self.lines, self.ids_sha256 or "")

    @property
    def expected_count(self) -> int:
        """Rows that the source counted."""
        return self.manifest.expected_count

    @property
    def loaded_count(self) -> int:
        """Rows that this batch will send."""
        return self.manifest.loaded_count

    @property
    def already_known(self) -> int:
        """Rows that an earlier batch loaded with the same body; they are not sent again."""
        return self.manifest.already_known


@dataclass(frozen=True, slots=True)
class Plan:
    """What a run would do now. Nothing was written."""

    job: str
    business_date: date
    lines: tuple[Line, ...]
    offenders: Offenders
    reasons: tuple[str, ...]


def run_batch(
    *,
    job: Job,
    business_date: date,
    record: str,
    owner: str,
    now: Callable[[], datetime],
    checkpoint: Checkpoint = failpoint,
) -> BatchResult:
    """Extract, check and release the batch of `job` for `business_date`; a second run of a released one does nothing.

    `record` is the URL of Madeira's database, `owner` says who runs this (host and process), `now` gives the
    events' `created_at`. Rows that cannot become events end in a result whose state is failed. Raises
    `ConfigurationError`, `BatchRefused` (the query is wrong, or the batch was taken over meanwhile) and
    `StoreUnavailable`; the batch is then failed too and can be run again.
    """
    with _connected(record, autocommit=True) as lease_connection:
        found = claim(lease_connection, job=job.id, business_date=business_date, revision=1, owner=owner)
        if isinstance(found, BatchRow):
            return _nothing_done(lease_connection, job, business_date, found)
        run = _Run(job, business_date, found, now(), checkpoint)
        checkpoint("load-after-claim")
        try:
            with renewed(lease_connection, found), _connected(record) as connection:
                result = run.load(connection)
        except MadeiraError as error:
            run.fail(lease_connection, {"error": str(error)})
            raise
        if result.state is BatchState.FAILED:
            run.fail(
                lease_connection,
                {
                    "count": result.offender_count,
                    "offenders": [
                        {"row": one.row, "event_id": one.event_id, "reason": one.reason}
                        for one in result.offenders
                    ],
                    "reasons": list(result.reasons),
                },
            )
    _log.info("batch_run", extra={"fields": _facts(result)})
    return result


def plan(*, job: Job, business_date: date, record: str, now: Callable[[], datetime]) -> Plan:
    """What `run_batch` would load, found the same way inside a transaction that is rolled back.

    Raises like `run_batch`.
    """
    batch = BatchRow(
        id=0, revision=1, state="running", lease_owner=None, leased=False, expected_count=None, loaded_count=None,
        already_known=None, ids_sha256=None, snapshot_at=None, failure=None,
    )  # fmt: skip
    run = _Run(job, business_date, Lease(batch, ""), now(), lambda _: None)
    with _connected(record) as connection:
        return run.plan(connection)


@dataclass(frozen=True, slots=True)
class _Written:
    """What a way of loading wrote, and what it left because it was known."""

    received: int
    known: dict[Group, Sum]
    loaded: dict[Group, Sum]
    ids_sha256: str


@dataclass(frozen=True, slots=True)
class _Run:
    job: Job
    business_date: date
    lease: Lease
    started_at: datetime
    checkpoint: Checkpoint

    def load(self, record: psycopg.Connection) -> BatchResult:
        """The whole run in one transaction of `record`; commits only what is released."""
        record.execute(statement("batch/record_session"))
        with snapshot(self.job, self.business_date) as source:
            written = self._straight(record, source) or self._carefully(record, source)
            if isinstance(written, Offenders):
                return self._result(BatchState.FAILED, offenders=written)
            manifest = draw_up(
                expected=source.totals(),
                already_known=written.known,
                loaded=written.loaded,
                ids_sha256=written.ids_sha256,
            )
        decision = decide(manifest, received=written.received)
        if isinstance(decision, Refuse):
            return self._result(BatchState.FAILED, manifest=manifest, reasons=decision.reasons)
        self._release(record, manifest)
        self.checkpoint("load-before-commit")
        record.commit()
        self.checkpoint("load-after-commit")
        return self._result(BatchState.RELEASED, manifest=manifest)

    def _straight(self, record: psycopg.Connection, source: Snapshot) -> _Written | None:
        """The quick way; None, with everything undone, when a row needs the careful one."""
        loading = Loading(
            record,
            self.job,
            batch_id=self.lease.batch.id,
            business_date=self.business_date,
            created_at=self.started_at,
        )
        try:
            with record.transaction(), source.again(), closing(source.events()) as events:
                loaded = loading.load(events)
                self.checkpoint("load-after-stage")
        except (NotStraight, UntranslatableRow, BatchRefused) as reason:
            _log.info("batch_needs_care", extra={"fields": {"job": self.job.id, "reason": str(reason)}})
            return None
        return _Written(received=loaded.rows, known={}, loaded=loaded.sums, ids_sha256=loaded.ids_sha256)

    def _carefully(self, record: psycopg.Connection, source: Snapshot) -> _Written | Offenders:
        """Stage everything, look at all of it, then load what is new."""
        stage = Stage(record, self.job)
        stage.set_up()
        received = stage.receive(source.rows())
        self.checkpoint("load-after-stage")
        known: dict[Group, Sum] = {}
        for _ in range(_LOAD_TRIES):
            offenders = stage.offenders(received)
            if offenders.count:
                return offenders
            for group, total in stage.known().items():
                known[group] = known.get(group, Sum()) + total
            try:
                with record.transaction():
                    loaded = stage.load(
                        batch_id=self.lease.batch.id,
                        business_date=self.business_date,
                        created_at=self.started_at,
                    )
            except psycopg.errors.UniqueViolation:
                # Another run of the same source committed one of these ids since we looked.
                continue
            return _Written(
                received=received.rows, known=known, loaded=loaded, ids_sha256=received.ids_sha256
            )
        raise BatchRefused(
            f"{self.job.id} {self.business_date}: other runs load the same ids meanwhile: run it again"
        )

    def plan(self, record: psycopg.Connection) -> Plan:
        """Like the careful way, without writing events."""
        stage = Stage(record, self.job)
        record.execute(statement("batch/record_session"))
        stage.set_up()
        with snapshot(self.job, self.business_date) as source:
            received = stage.receive(source.rows())
            offenders = stage.offenders(received)
            if offenders.count:
                return Plan(self.job.id, self.business_date, (), offenders, ())
            manifest = draw_up(
                expected=source.totals(),
                already_known=stage.known(),
                loaded=stage.totals(),
                ids_sha256=received.ids_sha256,
            )
        decision = decide(manifest, received=received.rows)
        reasons = decision.reasons if isinstance(decision, Refuse) else ()
        return Plan(self.job.id, self.business_date, manifest.lines, offenders, reasons)

    def fail(self, connection: psycopg.Connection, failure: dict[str, object]) -> None:
        """Write why; whoever took the batch over meanwhile keeps it."""
        connection.execute(
            statement("batch/fail"),
            {
                "batch_id": self.lease.batch.id,
                "owner": self.lease.owner,
                "snapshot_at": self.started_at,
                "failure": json.dumps(failure),
            },
        )

    def _release(self, record: psycopg.Connection, manifest: Manifest) -> None:
        batch_id = self.lease.batch.id
        released = record.execute(
            statement("batch/release"),
            {
                "batch_id": batch_id,
                "owner": self.lease.owner,
                "expected_count": manifest.expected_count,
                "loaded_count": manifest.loaded_count,
                "already_known": manifest.already_known,
                "ids_sha256": manifest.ids_sha256,
                "snapshot_at": self.started_at,
            },
        ).fetchone()
        if released is None:
            raise BatchRefused(
                f"{self.job.id} {self.business_date}: another run took this batch over; nothing was loaded"
            )
        totals = [
            {
                "batch_id": batch_id,
                "partner": line.partner,
                "currency": line.currency,
                "expected_count": line.expected.count,
                "expected_minor": line.expected.minor,
                "known_count": line.already_known.count,
                "known_minor": line.already_known.minor,
                "loaded_count": line.loaded.count,
                "loaded_minor": line.loaded.minor,
            }
            for line in manifest.lines
        ]
        with record.cursor() as cursor:
            cursor.executemany(statement("batch/write_total"), totals)
        record.execute(statement("batch/write_partners"), {"batch_id": batch_id})

    def _result(
        self,
        state: BatchState,
        *,
        manifest: Manifest | None = None,
        offenders: Offenders = _NO_OFFENDERS,
        reasons: tuple[str, ...] = (),
    ) -> BatchResult:
        return BatchResult(
            job=self.job.id,
            business_date=self.business_date,
            batch_id=self.lease.batch.id,
            revision=self.lease.batch.revision,
            state=state,
            did_nothing=False,
            lines=manifest.lines if manifest else (),
            ids_sha256=manifest.ids_sha256 if manifest else None,
            snapshot_at=self.started_at,
            offender_count=offenders.count,
            offenders=offenders.first,
            reasons=reasons,
        )


@contextmanager
def _connected(url: str, *, autocommit: bool = False) -> Iterator[psycopg.Connection]:
    """A connection to the record. Rolls back and closes; `StoreUnavailable` when it does not answer."""
    try:
        connection = psycopg.connect(
            url,
            autocommit=autocommit,
            application_name="madeira-batch",
            connect_timeout=10,
            client_encoding="UTF8",
        )
        try:
            if connection.info.parameter_status("server_encoding") != "UTF8":
                raise ConfigurationError(("MADEIRA_DATABASE_URL: create the database with ENCODING 'UTF8'",))
            yield connection
        finally:
            connection.close()
    except psycopg.OperationalError as error:
        text = str(error).strip().partition("\n")[0]
        raise StoreUnavailable(f"the record: {text}") from error


def _nothing_done(
    connection: psycopg.Connection, job: Job, business_date: date, batch: BatchRow
) -> BatchResult:
    found = connection.execute(statement("batch/read_totals"), {"batch_id": batch.id}).fetchall()
    state = BatchState(batch.state)
    return BatchResult(
        job=job.id,
        business_date=business_date,
        batch_id=batch.id,
        revision=batch.revision,
        state=state,
        did_nothing=True,
        lines=tuple(
            Line(
                partner=partner,
                currency=currency,
                expected=Sum(expected, int(expected_minor)),
                already_known=Sum(known, int(known_minor)),
                loaded=Sum(loaded, int(loaded_minor)),
            )
            for partner, currency, expected, expected_minor, known, known_minor, loaded, loaded_minor in found
        ),
        ids_sha256=batch.ids_sha256,
        snapshot_at=batch.snapshot_at,
        running_by=batch.lease_owner.partition("#")[0]
        if batch.lease_owner and state is BatchState.RUNNING
        else None,
    )


def _facts(result: BatchResult) -> dict[str, object]:
    return {
        "job": result.job,
        "business_date": result.business_date.isoformat(),
        "batch": result.batch_id,
        "state": result.state.value,
        "expected": result.expected_count,
        "loaded": result.loaded_count,
        "already_known": result.already_known,
        "offenders": result.offender_count,
    }
