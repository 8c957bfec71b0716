"""From how an attempt ended to what is settled; pure."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import msgspec
import pytest

from pipelines.attempt import (
    Hand,
    Timing,
    policy_of,
    settle_answer,
    settle_outcome,
    settle_takeover,
)
from sinks.answer import Answer, Failed, Stage
from sinks.partner import Partner
from streams.delivery import (
    WORKER_DIED,
    Attempt,
    Cause,
    Dead,
    Kind,
    Outcome,
    Retry,
    State,
    Succeeded,
    Unknown,
)
from streams.envelope import encode
from streams.moves import Sign
from streams.pace import ClockMap
from streams.scripts import Entry, Place, Settlement
from tests.partner import MOMENT, envelope, partner

NOW = MOMENT + timedelta(minutes=10)
PARTNER = partner(
    "https://bank.example/", levels=(timedelta(seconds=60), timedelta(seconds=120)), max_attempts=4
)
decode = msgspec.msgpack.Decoder(Attempt).decode


def hand(*, attempts: int = 0, unknowns: int = 0, doubtful: bool = False, to: Partner = PARTNER) -> Hand:
    """An entry with this history, in the hand of w1 under generation 3."""
    event = envelope()
    entry = Entry(Place("batch:7", "1-12"), event.delivery, attempts, unknowns, doubtful, encode(event))
    return Hand(partner=to, policy=policy_of(to), entry=entry, envelope=event, generation=3, worker="w1")


def settled(outcome: Outcome, *, by: Hand | None = None) -> tuple[Settlement, Attempt]:
    """What is settled for an outcome at NOW, and the attempt within."""
    timing = Timing(NOW - timedelta(seconds=2), NOW - timedelta(seconds=1), NOW)
    ended = settle_outcome(by or hand(), outcome, timing, status_code=200, seen="said")
    assert decode(ended.settlement.outcome) == ended.attempt
    return ended.settlement, ended.attempt


def test_an_attempt_that_failed_before_its_slot_took_no_time() -> None:
    """A connection is made ready ahead of the slot; refused there, the log has 0 ms, never less."""
    timing = Timing(NOW + timedelta(milliseconds=20), None, NOW)
    refused = settle_outcome(hand(), Retry("refused", may_have_arrived=False), timing)
    assert refused.attempt.elapsed_ms == 0


KINDS: list[tuple[Outcome, Kind, State, Cause | None, bool]] = [
    (Succeeded("200"), Kind.SUCCEEDED, State.SUCCEEDED, None, False),
    (Retry("503", may_have_arrived=False), Kind.RETRY, State.RETRYING, None, False),
    (Retry("504", may_have_arrived=True), Kind.RETRY, State.RETRYING, None, True),
    (Dead("400"), Kind.DEAD, State.DEAD, Cause.REFUSED, False),
    (Unknown("302"), Kind.UNKNOWN, State.RETRYING, None, True),
]


@pytest.mark.parametrize(("outcome", "kind", "state", "cause", "arrived"), KINDS)
def test_every_kind_of_outcome(
    outcome: Outcome, kind: Kind, state: State, cause: Cause | None, *, arrived: bool
) -> None:
    """State, cause, due time and flag by the kind; the next attempt is told whether this one may have arrived."""
    settlement, attempt = settled(outcome)
    assert (attempt.outcome, attempt.state, attempt.cause, attempt.may_have_arrived) == (
        kind,
        state,
        cause,
        arrived,
    )
    assert (settlement.state, settlement.possible_duplicate) == (state, arrived)
    assert not attempt.possible_duplicate, "this was the first send"
    assert (settlement.attempts, settlement.unknowns) == (1, int(kind is Kind.UNKNOWN))
    assert (attempt.number, attempt.unknowns, attempt.reason) == (1, settlement.unknowns, outcome.reason)
    if state is State.RETRYING:
        assert (settlement.delay_s, attempt.due_at) == (60, NOW + timedelta(seconds=60))
        assert settlement.due_ms == int((NOW + timedelta(seconds=60)).timestamp() * 1000)
    else:
        assert (settlement.delay_s, settlement.due_ms, attempt.due_at) == (None, None, None)


def test_what_is_known_of_the_attempt() -> None:
    """Who, what, when, for how long, and what the partner said."""
    settlement, attempt = settled(Succeeded("200"))
    assert attempt.attempt_id == settlement.attempt_id == "AB/3/batch:7/1-12"
    assert (attempt.source, attempt.event_id) == ("payment-orders", "29401:2026-03-02")
    assert settlement.delivery == "payment-orders:29401:2026-03-02"
    assert (attempt.partner, attempt.worker, attempt.created_at) == ("AB", "w1", MOMENT)
    assert (attempt.started_at, attempt.sent_at) == (NOW - timedelta(seconds=2), NOW - timedelta(seconds=1))
    assert (attempt.elapsed_ms, attempt.status_code, attempt.excerpt) == (1000, 200, "said")


def test_history_counts_on() -> None:
    """Attempts, unknowns and the flag go on from what the entry brought."""
    settlement, attempt = settled(Unknown("x"), by=hand(attempts=1, unknowns=1, doubtful=True))
    assert (settlement.attempts, settlement.unknowns, settlement.delay_s) == (2, 2, 120)
    assert attempt.possible_duplicate
    settlement, _ = settled(Retry("503", may_have_arrived=False), by=hand(attempts=1, doubtful=True))
    assert settlement.possible_duplicate, "what may have arrived once may have arrived for ever"


@pytest.mark.parametrize(
    ("outcome", "by", "cause"),
    [
        (Retry("503", may_have_arrived=False), hand(attempts=3), Cause.ATTEMPTS_EXHAUSTED),
        (Retry("504", may_have_arrived=True), hand(attempts=3), Cause.UNKNOWN),
        (Unknown("x"), hand(attempts=1, unknowns=3), Cause.UNKNOWN),
        (
            Retry("503", may_have_arrived=False),
            hand(to=partner("https://bank.example/", max_age=timedelta(minutes=10))),
            Cause.TOO_OLD,
        ),
    ],
)
def test_bounds(outcome: Outcome, by: Hand, cause: Cause) -> None:
    """Every delivery ends by the partner's bounds, and says by which."""
    settlement, attempt = settled(outcome, by=by)
    assert (settlement.state, attempt.state, attempt.cause) == (State.DEAD, State.DEAD, cause)
    assert (settlement.delay_s, attempt.due_at) == (None, None)


def clock() -> ClockMap:
    """Redis's clock shows NOW at the monotonic second 100."""
    us = int(NOW.timestamp() * 1_000_000)
    return ClockMap().narrowed(asked=100.0, answered=100.0, redis_us=us)


def test_an_answer_is_put_on_redis_time() -> None:
    """Slot, headers and end are mapped; the answer is judged and its text cleaned."""
    answer = Answer(200, None, b'{"success": true}\x00\n', truncated=False, sent_at=100.002, ended_at=100.05)
    attempt = settle_answer(hand(), answer, start=100.001, clock=clock()).attempt
    near = timedelta(microseconds=2)
    assert abs(attempt.started_at - NOW - timedelta(milliseconds=1)) <= near
    assert attempt.sent_at is not None
    assert abs(attempt.sent_at - NOW - timedelta(milliseconds=2)) <= near
    assert (attempt.elapsed_ms, attempt.excerpt, attempt.state) == (48, '{"success": true}', State.SUCCEEDED)
    assert attempt.started_at.tzinfo == UTC


def test_nothing_left_this_machine() -> None:
    """Then there is no time of sending, no status, and no doubt."""
    failed = Failed(Stage.CONNECT, may_have_arrived=False, reason="refused", sent_at=None, ended_at=100.5)
    ended = settle_answer(hand(), failed, start=100.0, clock=clock())
    attempt, settlement = ended.attempt, ended.settlement
    assert (attempt.sent_at, attempt.status_code, attempt.may_have_arrived) == (None, None, False)
    assert (attempt.elapsed_ms, settlement.state, settlement.possible_duplicate) == (
        500,
        State.RETRYING,
        False,
    )


def test_a_pause_costs_no_attempt() -> None:
    """A 429 with `Retry-After`: logged, not counted, due when the pause ends, in the lane again at once."""
    answer = Answer(429, timedelta(seconds=90), b"", truncated=False, sent_at=100.0, ended_at=100.0)
    ended = settle_answer(hand(attempts=3, unknowns=1), answer, start=100.0, clock=clock())
    attempt, settlement = ended.attempt, ended.settlement
    assert (attempt.number, attempt.unknowns, attempt.counted) == (4, 1, False)
    assert (settlement.attempts, settlement.unknowns, settlement.state) == (3, 1, State.RETRYING)
    assert (settlement.pause_us, settlement.delay_s) == (90_000_000, 0)
    near = timedelta(microseconds=2)
    assert attempt.due_at is not None
    assert abs(attempt.due_at - NOW - timedelta(seconds=90)) <= near
    assert (settlement.sign, settlement.spared) == (Sign.ANSWERED, None)


def test_a_pause_lasts_a_second_at_least() -> None:
    """`Retry-After: 0` is no leave to be asked without end."""
    answer = Answer(503, timedelta(0), b"", truncated=False, sent_at=100.0, ended_at=100.0)
    assert settle_answer(hand(), answer, start=100.0, clock=clock()).settlement.pause_us == 1_000_000


@pytest.mark.parametrize("arrived", [False, True])
def test_a_failure_is_decided_twice(*, arrived: bool) -> None:
    """Once as an attempt, and once as one that was spared; the doubt is the same in both."""
    sent = 100.0 if arrived else None
    failed = Failed(Stage.RESET, may_have_arrived=arrived, reason="gone", sent_at=sent, ended_at=100.0)
    ended = settle_answer(hand(attempts=3, unknowns=2), failed, start=100.0, clock=clock())
    settlement, spared = ended.settlement, ended.settlement.spared
    assert (settlement.state, settlement.attempts, settlement.sign) == (State.DEAD, 4, Sign.FAILED)
    assert (settlement.reason, settlement.possible_duplicate) == ("gone", arrived)
    assert spared is not None
    assert (spared.state, spared.attempts, spared.unknowns) == (State.RETRYING, 3, 2)
    other = decode(spared.outcome)
    assert other == ended.spared
    assert (other.counted, other.state, other.cause, other.number) == (False, State.RETRYING, None, 4)
    assert (other.attempt_id, other.may_have_arrived) == (ended.attempt.attempt_id, arrived)
    assert other.due_at is not None
    assert abs(other.due_at - NOW) <= timedelta(microseconds=2)


def test_a_takeover_says_nothing_of_the_partner() -> None:
    """It was our worker that died."""
    settlement = settle_takeover(hand(), NOW).settlement
    assert (settlement.sign, settlement.spared) == (Sign.NOTHING, None)


def test_a_conflict_is_judged_by_what_came_before() -> None:
    """A 409 after an attempt that may have arrived is unknown; after none it is a refusal."""
    answer = Answer(409, None, b"", truncated=False, sent_at=100.0, ended_at=100.0)
    first = settle_answer(hand(), answer, start=100.0, clock=clock()).attempt
    later = settle_answer(hand(attempts=1, doubtful=True), answer, start=100.0, clock=clock()).attempt
    assert (first.outcome, later.outcome) == (Kind.DEAD, Kind.UNKNOWN)


def test_a_takeover_says_that_nobody_knows() -> None:
    """The attempt is unknown, never sent for all we can say, and the next send is flagged."""
    ended = settle_takeover(hand(), NOW)
    attempt, settlement = ended.attempt, ended.settlement
    assert (attempt.outcome, attempt.reason, attempt.sent_at) == (Kind.UNKNOWN, WORKER_DIED, None)
    assert (attempt.may_have_arrived, settlement.possible_duplicate) == (True, True)
    assert attempt.started_at == datetime(2026, 3, 2, 1, 25, tzinfo=UTC)
