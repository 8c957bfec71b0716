"""From how an attempt ended to what is settled: the outcome, the next step, and the row of the log."""

from __future__ import annotations

import logging
from datetime import datetime, timedelta
from typing import assert_never

import msgspec
from msgspec import structs

from sinks.answer import Answer, Failed
from sinks.classify import classify, excerpt, sign_of
from sinks.partner import Partner
from streams.delivery import WORKER_DIED, Attempt, Dead, Kind, Outcome, Retry, Succeeded, Unknown
from streams.envelope import Envelope, decode
from streams.moves import Sign, Spared
from streams.pace import EPOCH, ClockMap, to_ms
from streams.retry import NextStep, RetryPolicy, next_step
from streams.scripts import Entry, Settlement

log = logging.getLogger(__name__)

_MICROSECOND = timedelta(microseconds=1)
_SHORTEST_PAUSE = timedelta(seconds=1)
_encoder = msgspec.msgpack.Encoder()


class Hand(msgspec.Struct, frozen=True):
    """Who sent what for whom: an entry, decoded, in the hand of one worker under one generation."""

    partner: Partner
    policy: RetryPolicy
    entry: Entry
    envelope: Envelope
    generation: int
    worker: str


class Ended(msgspec.Struct, frozen=True):
    """An attempt that is over, and how to settle it. `spared` is what it is if the breaker was open by then."""

    attempt: Attempt
    settlement: Settlement
    spared: Attempt | None = None


class Timing(msgspec.Struct, frozen=True):
    """When an attempt began (its slot), when its headers left (None: never), when it ended. UTC, Redis's clock."""

    started_at: datetime
    sent_at: datetime | None
    ended_at: datetime


def legible(partner: Partner, entry: Entry) -> Envelope | None:
    """The entry's envelope; None, with a log line, for one that this version cannot read.

    It stays in hand, for a worker that can: one entry must not stop its partner, and nobody may guess what it is.
    """
    try:
        return decode(entry.envelope)
    except msgspec.MsgspecError as error:
        fields = {"partner": partner.name, "delivery": entry.delivery, "error": str(error)}
        log.error("entry_illegible", extra={"fields": fields})  # noqa: TRY400 - a trace says nothing more
        return None


def policy_of(partner: Partner) -> RetryPolicy:
    """How often and how long a partner is tried again; made once, used for every attempt."""
    return RetryPolicy(
        levels=partner.levels,
        max_attempts=partner.max_attempts,
        max_age=partner.max_age,
        unknown_retries=partner.unknown_retries,
    )


def settle_answer(hand: Hand, answer: Answer | Failed, *, start: float, clock: ClockMap) -> Ended:
    """What to settle after a send. `start` is the slot's moment in monotonic seconds, mapped by `clock`."""
    outcome = classify(answer, hand.partner, earlier_may_have_arrived=hand.entry.possible_duplicate)
    timing = _timing(answer, start=start, clock=clock)
    sign = sign_of(answer)
    if isinstance(answer, Answer):
        return settle_outcome(
            hand, outcome, timing, status_code=answer.status, seen=excerpt(answer.body), sign=sign
        )
    return settle_outcome(hand, outcome, timing, sign=sign)


def settle_unforeseen(
    hand: Hand, answer: Answer | Failed, error: Exception, *, start: float, clock: ClockMap
) -> Ended:
    """What to settle when `settle_answer` itself failed with `error`: nobody knows what the answer meant."""
    outcome = Unknown(f"the answer could not be judged: {type(error).__name__}")
    status = answer.status  # the answer's own words may be what could not be handled
    timing = _timing(answer, start=start, clock=clock)
    return settle_outcome(hand, outcome, timing, status_code=status, sign=sign_of(answer))


def _timing(answer: Answer | Failed, *, start: float, clock: ClockMap) -> Timing:
    return Timing(
        started_at=clock.redis(start),
        sent_at=None if answer.sent_at is None else clock.redis(answer.sent_at),
        ended_at=clock.redis(answer.ended_at),
    )


def settle_takeover(hand: Hand, now: datetime) -> Ended:
    """What to settle for an entry whose worker died with it in hand: nobody knows whether it was sent."""
    return settle_outcome(hand, Unknown(WORKER_DIED), Timing(now, None, now))


def settle_outcome(
    hand: Hand,
    outcome: Outcome,
    timing: Timing,
    *,
    status_code: int | None = None,
    seen: str = "",
    sign: Sign = Sign.NOTHING,
) -> Ended:
    """Decide the next step by the partner's policy and put the attempt into the form that settle takes.

    For a failure it is decided twice, also for a breaker that was open by then: only Redis knows.
    """
    entry, envelope, partner = hand.entry, hand.envelope, hand.partner
    kind, arrived = _judged(outcome)
    attempts = entry.attempts + 1
    unknowns = entry.unknowns + (kind is Kind.UNKNOWN)

    def decided(*, spared: bool) -> NextStep:
        return next_step(
            outcome,
            attempts=max(attempts - envelope.attempts_before, 1),
            unknowns=unknowns,
            created_at=envelope.replayed_at or envelope.created_at,
            now=timing.ended_at,
            policy=hand.policy,
            spared=spared,
        )

    step = decided(spared=False)
    counted = step.counted
    due_at = None if step.delay is None else timing.ended_at + step.delay
    # A connection that is refused before its slot ends before it began by the slot; that took no time.
    took = max(timedelta(0), timing.ended_at - (timing.sent_at or timing.started_at))
    attempt = Attempt(
        attempt_id=entry.place.attempt_id(partner.name, hand.generation),
        source=envelope.source,
        event_id=envelope.event_id,
        partner=partner.name,
        created_at=envelope.created_at,
        number=attempts,
        unknowns=unknowns if counted else entry.unknowns,
        worker=hand.worker,
        trace_id=envelope.trace_id,
        started_at=timing.started_at,
        sent_at=timing.sent_at,
        elapsed_ms=round(took.total_seconds() * 1000),
        status_code=status_code,
        outcome=kind,
        reason=outcome.reason,
        may_have_arrived=arrived,
        possible_duplicate=entry.possible_duplicate,
        excerpt=seen,
        state=step.state,
        cause=step.cause,
        due_at=due_at,
        counted=counted,
    )
    settlement = Settlement(
        place=entry.place,
        delivery=entry.delivery,
        attempt_id=attempt.attempt_id,
        state=step.state,
        attempts=attempts if counted else entry.attempts,
        unknowns=attempt.unknowns,
        possible_duplicate=entry.possible_duplicate or arrived,
        delay_s=None if step.delay is None else round(step.delay.total_seconds()) if counted else 0,
        due_ms=None if due_at is None else to_ms(due_at if counted else timing.ended_at),
        outcome=_encoder.encode(attempt),
        sign=sign,
        ended_us=(timing.ended_at - EPOCH) // _MICROSECOND,
        reason=outcome.reason,
        pause_us=_pause_us(outcome) if isinstance(outcome, Retry) else 0,
    )
    if sign is not Sign.FAILED or not counted:
        return Ended(attempt, settlement)
    other = _spared(attempt, entry, decided(spared=True), timing)
    spared = Spared(
        state=other.state,
        attempts=entry.attempts,
        unknowns=entry.unknowns,
        outcome=_encoder.encode(other),
        due_ms=to_ms(timing.ended_at),
    )
    return Ended(attempt, structs.replace(settlement, spared=spared), other)


def _spared(attempt: Attempt, entry: Entry, step: NextStep, timing: Timing) -> Attempt:
    """The same attempt, had the breaker been open."""
    return structs.replace(
        attempt,
        unknowns=entry.unknowns,
        state=step.state,
        cause=step.cause,
        due_at=None if step.delay is None else timing.ended_at + step.delay,
        counted=False,
    )


def _pause_us(outcome: Retry) -> int:
    """How long the whole partner waits: what it asked for, and a second at least, or `0` would be asked for ever."""
    if not outcome.pauses:
        return 0
    return max(outcome.after or timedelta(0), _SHORTEST_PAUSE) // _MICROSECOND


def _judged(outcome: Outcome) -> tuple[Kind, bool]:
    """The outcome's name, and whether this attempt may have reached the partner without being confirmed."""
    match outcome:
        case Succeeded():
            return Kind.SUCCEEDED, False
        case Retry(may_have_arrived=arrived):
            return Kind.RETRY, arrived
        case Dead(may_have_arrived=arrived):
            return Kind.DEAD, arrived
        case Unknown():
            return Kind.UNKNOWN, True
        case _:
            assert_never(outcome)
