"""What is said about an event: taken or refused, alone or as a line of many, and where it is now.

The bodies here are those of openapi.json; that of a whole refusal is in `problem`.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from datetime import datetime
from typing import Final, assert_never

import msgspec

from madeira.format import Mistake
from madeira.problem import NDJSON, Answer, Kind
from pipelines import intake
from pipelines.intake import Away, Unavailable, Unstorable
from pipelines.whereabouts import Whereabouts
from streams.inbound import Accepted, Inbound, Verdict

log = logging.getLogger(__name__)

STORE_RETRY_S: Final = 5
"""Seconds after which whoever found a store away may come again."""

_SAID: Final = {verdict: verdict.name.lower() for verdict in Verdict}
_STORE_WORDS: Final = {
    Away.POSTGRES: "PostgreSQL does not answer",
    Away.REDIS: "Redis does not answer",
    Away.FULL: "Redis is at its memory limit",
    Away.BUSY: "too many events are waiting",
    Away.CLOSING: "this process is leaving",
}
_KINDS: Final = {kind.type: kind for kind in Kind}
_encode_lines: Final = msgspec.json.Encoder().encode_lines


class Refused(msgspec.Struct, frozen=True):
    """One event that is not taken, before it is known whether that becomes a line or a whole answer."""

    kind: Kind
    detail: str
    errors: tuple[Mistake, ...] = ()
    event_id: str | None = None
    trace_id: str | None = None
    retry_after_s: int | None = None


class LineTaken(msgspec.Struct, frozen=True):
    """What is said of a line whose event is taken; lines count from 1."""

    line: int
    status: str
    event_id: str
    trace_id: str


class LineRefused(msgspec.Struct, frozen=True, omit_defaults=True):
    """What is said of a line whose event is not taken."""

    line: int
    code: int
    type: str
    title: str
    detail: str
    status: str = msgspec.field(default_factory=lambda: "refused")  # a factory: it is never left out
    event_id: str | None = None
    trace_id: str | None = None
    errors: tuple[Mistake, ...] = ()

    @property
    def kind(self) -> Kind:
        """Why it is not taken."""
        return _KINDS[self.type]


Line = LineTaken | LineRefused


class _Taken(msgspec.Struct, frozen=True):
    """The body of a 202."""

    status: str
    event_id: str
    trace_id: str


class _Try(msgspec.Struct, frozen=True):
    number: int
    sent_at: datetime | None
    status_code: int | None
    outcome: str
    reason: str
    may_have_arrived: bool


class _Delivery(msgspec.Struct, frozen=True):
    partner: str
    status: str
    attempts: tuple[_Try, ...]
    possible_duplicate: bool
    next_attempt_at: datetime | None


class _Event(msgspec.Struct, frozen=True, omit_defaults=True):
    """The body of a 200 about an event."""

    event_id: str
    source: str
    trace_id: str
    status: str
    deliveries: tuple[_Delivery, ...]
    event_type: str | None = None
    accepted_at: datetime | None = None
    reason: str | None = None


def judge(event: Inbound, answer: intake.Answer) -> Verdict | Refused:
    """What the sender of one event is told; never `Verdict.CONFLICT`, which is a refusal."""
    if isinstance(answer, Accepted) and answer.verdict is not Verdict.CONFLICT:
        return answer.verdict
    match answer:
        case Accepted():
            fields = {"source": event.source, "event_id": event.event_id, "trace_id": answer.trace_id}
            log.warning("id_with_another_body", extra={"fields": fields})
            return Refused(
                Kind.CONFLICT,
                "the first one stays; send a changed event under an id of its own",
                event_id=event.event_id,
                trace_id=answer.trace_id,
            )
        case Unavailable():
            return Refused(
                Kind.FULL if answer.away is Away.FULL else Kind.STORE,
                _STORE_WORDS[answer.away],
                event_id=event.event_id,
                retry_after_s=1 if answer.away in (Away.BUSY, Away.CLOSING) else STORE_RETRY_S,
            )
        case Unstorable():
            return Refused(
                Kind.FORMAT,
                "the record cannot hold this event",
                errors=(Mistake("$", "cannot be stored"),),
                event_id=event.event_id,
                trace_id=event.trace_id,
            )
        case _:
            assert_never(answer)


def mistaken(errors: tuple[Mistake, ...], *, all_of_them: bool = True) -> Refused:
    """What is said of an event with these mistakes: each, or the first and how many more there are."""
    more = len(errors) - 1
    first = f"{errors[0].path} {errors[0].message}"
    return Refused(
        Kind.FORMAT,
        f"{first}; and {more} more" if more else first,
        errors=errors if all_of_them else errors[:1],
    )


def trace_id_of(answer: intake.Answer) -> str:
    """The trace of an event that `judge` let pass: of a duplicate, that of the first."""
    assert isinstance(answer, Accepted)
    return answer.trace_id


def taken(verdict: Verdict, event_id: str, trace_id: str) -> Answer:
    """The 202 about one event."""
    return Answer(
        202,
        msgspec.json.encode(_Taken(_SAID[verdict], event_id, trace_id)),
        headers=f"X-Trace-Id: {trace_id}\r\n",
    )


def line_of(number: int, event: Inbound, answer: intake.Answer) -> Line:
    """What is said of a line whose event went to the stores."""
    judged = judge(event, answer)
    if isinstance(judged, Refused):
        return line_refused(number, judged)
    return LineTaken(number, _SAID[judged], event.event_id, trace_id_of(answer))


def line_refused(number: int, refused: Refused) -> LineRefused:
    """What is said of a line whose event is not taken."""
    kind = refused.kind
    return LineRefused(
        number,
        kind.status,
        kind.type,
        kind.title,
        refused.detail,
        event_id=refused.event_id,
        trace_id=refused.trace_id,
        errors=refused.errors,
    )


def each_line(lines: Sequence[Line]) -> Answer:
    """The 200 that says of each line what became of it."""
    return Answer(200, _encode_lines(lines), NDJSON)


def found_at(found: Whereabouts) -> Answer:
    """The 200 about where an event is now."""
    return Answer(200, msgspec.json.encode(_event(found)), headers=f"X-Trace-Id: {found.trace_id}\r\n")


def _event(found: Whereabouts) -> _Event:
    return _Event(
        event_id=found.event_id,
        source=found.source,
        trace_id=found.trace_id,
        status=found.stage.value,
        event_type=found.event_type,
        accepted_at=found.accepted_at,
        reason=found.reason,
        deliveries=tuple(
            _Delivery(
                sending.partner,
                sending.status.value,
                tuple(
                    _Try(
                        attempt.number,
                        attempt.sent_at,
                        attempt.status_code,
                        attempt.outcome,
                        attempt.reason,
                        attempt.may_have_arrived,
                    )
                    for attempt in sending.attempts
                ),
                sending.possible_duplicate,
                sending.next_attempt_at,
            )
            for sending in found.deliveries
        ),
    )
