"""What follows an outcome."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streams.delivery import Cause, Dead, Outcome, Retry, State, Succeeded, Unknown
from streams.retry import NextStep, RetryPolicy, delay_for, next_step

LEVELS = tuple(timedelta(seconds=s) for s in (60, 120, 240))
POLICY = RetryPolicy(LEVELS, max_attempts=5, max_age=timedelta(hours=1), unknown_retries=2)
BORN = datetime(2026, 3, 2, tzinfo=UTC)


def step(
    outcome: Outcome,
    *,
    attempts: int = 1,
    unknowns: int = 0,
    age: timedelta = timedelta(0),
    spared: bool = False,
) -> NextStep:
    """The next step under the policy above."""
    return next_step(
        outcome,
        attempts=attempts,
        unknowns=unknowns,
        created_at=BORN,
        now=BORN + age,
        policy=POLICY,
        spared=spared,
    )


def test_ends() -> None:
    """A yes and a no end it."""
    assert step(Succeeded("ok")) == NextStep(State.SUCCEEDED)
    assert step(Dead("400")) == NextStep(State.DEAD, cause=Cause.REFUSED)


@pytest.mark.parametrize(("attempts", "seconds"), [(1, 60), (2, 120), (3, 240), (4, 240)])
def test_waits_by_level(attempts: int, seconds: int) -> None:
    """Each attempt waits its level, the last one repeats."""
    waits = NextStep(State.RETRYING, delay=timedelta(seconds=seconds))

    assert step(Retry("503", may_have_arrived=False), attempts=attempts) == waits
    assert step(Unknown("timeout"), attempts=attempts, unknowns=1) == waits


@pytest.mark.parametrize(
    ("outcome", "cause"),
    [
        (Retry("503", may_have_arrived=False), Cause.ATTEMPTS_EXHAUSTED),
        (Retry("504", may_have_arrived=True), Cause.UNKNOWN),
        (Unknown("?"), Cause.UNKNOWN),
    ],
)
def test_attempts_are_bounded(outcome: Outcome, cause: Cause) -> None:
    """The last attempt ends it, and what may have arrived has to be asked about."""
    assert step(outcome, attempts=4, unknowns=1).state is State.RETRYING
    assert step(outcome, attempts=5, unknowns=1) == NextStep(State.DEAD, cause=cause)


@pytest.mark.parametrize(("may_have_arrived", "cause"), [(False, Cause.TOO_OLD), (True, Cause.UNKNOWN)])
def test_age_is_bounded(may_have_arrived: bool, cause: Cause) -> None:
    """No attempt is planned that would begin when the event is too old."""
    outcome = Retry("503", may_have_arrived=may_have_arrived)

    assert step(outcome, age=timedelta(minutes=59)).state is State.RETRYING
    assert step(outcome, age=timedelta(minutes=59, seconds=1)) == NextStep(State.DEAD, cause=cause)


def test_unknowns_are_bounded() -> None:
    """An unknown is tried again as often as agreed, whatever the other attempts were."""
    assert step(Unknown("?"), attempts=4, unknowns=2).state is State.RETRYING
    assert step(Unknown("?"), attempts=4, unknowns=3) == NextStep(State.DEAD, cause=Cause.UNKNOWN)


def test_a_pause_is_bounded_by_age_alone() -> None:
    """A `Retry-After` for all is waited for at any number of attempts, unless the delivery is too old by then."""
    asked = Retry("429", may_have_arrived=False, after=timedelta(minutes=5), pauses=True)
    waits = NextStep(State.RETRYING, delay=timedelta(minutes=5), counted=False)

    assert step(asked, attempts=1) == step(asked, attempts=999, age=timedelta(minutes=55)) == waits
    assert step(asked, age=timedelta(minutes=55, seconds=1)) == NextStep(
        State.DEAD, cause=Cause.TOO_OLD, counted=False
    )


def test_what_is_spared_is_bounded_by_age_alone() -> None:
    """While the breaker is open no number of attempts or unknowns ends a delivery, and it waits in no level."""
    at_once = NextStep(State.RETRYING, delay=timedelta(0), counted=False)
    refused, unknown = Retry("no connection", may_have_arrived=False), Unknown("the answer is not HTTP")

    assert step(refused, attempts=99, spared=True) == at_once
    assert step(unknown, attempts=99, unknowns=99, spared=True) == at_once
    old = timedelta(hours=1, seconds=1)
    assert step(refused, age=old, spared=True).cause is Cause.TOO_OLD
    assert step(unknown, age=old, spared=True).cause is Cause.UNKNOWN


@given(
    attempts=st.integers(1, 30),
    after=st.timedeltas(min_value=timedelta(0), max_value=timedelta(days=2)),
)
def test_retry_after_is_never_undercut(attempts: int, after: timedelta) -> None:
    """The wait is the level or a longer one, from few streams: the levels and multiples of the last."""
    delay = delay_for(attempts, LEVELS, after)

    assert delay >= max(after, LEVELS[min(attempts, 3) - 1])
    assert delay in LEVELS or delay % LEVELS[-1] == timedelta(0)
