"""What follows an outcome: done, dead, or another attempt after a wait. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import assert_never

from streams.delivery import Cause, Dead, Outcome, Retry, State, Succeeded, Unknown


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """`levels` are the waits by attempt, the last repeats; `max_age` counts from the event's `created_at`."""

    levels: tuple[timedelta, ...]
    max_attempts: int
    max_age: timedelta
    unknown_retries: int


@dataclass(frozen=True, slots=True)
class NextStep:
    """Where the delivery goes: `cause` with DEAD, `delay` with RETRYING.

    Not `counted`: the attempt takes nothing of `max_attempts` and `unknown_retries`, and what holds the next one back
    for `delay` or longer is the partner's pace, not a delay of its own.
    """

    state: State
    cause: Cause | None = None
    delay: timedelta | None = None
    counted: bool = True


def next_step(
    outcome: Outcome,
    *,
    attempts: int,
    unknowns: int,
    created_at: datetime,
    now: datetime,
    policy: RetryPolicy,
    spared: bool = False,
) -> NextStep:
    """`attempts` (at least 1) and `unknowns` include this attempt. `spared`: it failed while the breaker was open.

    An attempt is only planned if it would begin within `max_age`. Giving up on what may have arrived has the
    cause UNKNOWN: ask the partner before sending again.
    """
    match outcome:
        case Succeeded():
            return NextStep(State.SUCCEEDED)
        case Dead():
            return NextStep(State.DEAD, cause=Cause.REFUSED)
        case Unknown():
            after, may_have_arrived = None, True
            if unknowns > policy.unknown_retries and not spared:
                return NextStep(State.DEAD, cause=Cause.UNKNOWN)
        case Retry():
            after, may_have_arrived = outcome.after, outcome.may_have_arrived
            spared = spared or outcome.pauses
        case _:
            assert_never(outcome)
    delay = (after or timedelta(0)) if spared else delay_for(attempts, policy.levels, after)
    if attempts >= policy.max_attempts and not spared:
        return NextStep(State.DEAD, cause=Cause.UNKNOWN if may_have_arrived else Cause.ATTEMPTS_EXHAUSTED)
    if now + delay > created_at + policy.max_age:
        return NextStep(
            State.DEAD, cause=Cause.UNKNOWN if may_have_arrived else Cause.TOO_OLD, counted=not spared
        )
    return NextStep(State.RETRYING, delay=delay, counted=not spared)


def delay_for(attempts: int, levels: tuple[timedelta, ...], after: timedelta | None = None) -> timedelta:
    """The level of this attempt, or a longer one that does not undercut the partner's `Retry-After`.

    Above the last level whole multiples of it, so that few streams cover any wait.
    """
    level = levels[min(attempts, len(levels)) - 1]
    if after is None or after <= level:
        return level
    last = levels[-1]
    longer = [known for known in levels if known >= after]
    return min(longer) if longer else -(-after // last) * last
