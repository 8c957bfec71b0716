"""The table of moves: where a delivery can go, and where never."""

from __future__ import annotations

from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from streams.delivery import MOVES, TERMINAL, Cause, Kind, Move, State

NO_DEADLINE = hypothesis_settings(deadline=None)  # a busy machine is no fault
STORED = set(State) - {State.DELIVERING}
BY_PEOPLE = {Move.RELEASE, Move.REPLAY, Move.CANCEL}


def test_every_stored_state_has_its_moves() -> None:
    """`delivering` is only shown, so it is nowhere in the table."""
    assert set(MOVES) == STORED
    assert {to for moves in MOVES.values() for to in moves.values()} <= STORED


def test_terminal_states_are_left_only_by_name() -> None:
    """Delivered is for ever; the dead turn out to have arrived, or people decide; the cancelled may have arrived."""
    assert {state: set(MOVES[state]) for state in TERMINAL} == {
        State.SUCCEEDED: set(),
        State.DEAD: {Move.LATE_SUCCESS, Move.CONFIRM, Move.REPLAY, Move.CANCEL},
        State.CANCELLED: {Move.LATE_SUCCESS, Move.DOUBT},
    }


def test_a_move_leads_to_one_state() -> None:
    """Whatever it comes from, so that the name of a move says what it did."""
    for move in Move:
        assert len({moves[move] for moves in MOVES.values() if move in moves}) == 1


def test_whoever_waits_can_end_well_and_be_cancelled() -> None:
    """From pending and retrying an outcome may do all it can; what is held only people move."""
    for state in (State.PENDING, State.RETRYING):
        assert set(MOVES[state]) == {Move.SUCCEED, Move.LATE_SUCCESS, Move.RETRY, Move.GIVE_UP, Move.CANCEL}
    assert set(MOVES[State.HELD]) <= BY_PEOPLE


@NO_DEADLINE
@given(start=st.sampled_from(sorted(STORED)), moves=st.lists(st.sampled_from(Move), max_size=30))
def test_walks(start: State, moves: list[Move]) -> None:
    """On any walk: never outside, never away from succeeded, out of an end by no ordinary outcome."""
    state = start
    for move in moves:
        if move not in MOVES[state]:
            continue
        before, state = state, MOVES[state][move]
        assert state in MOVES
        assert before is not State.SUCCEEDED
        if before in TERMINAL:
            assert move not in {Move.SUCCEED, Move.RETRY, Move.GIVE_UP, Move.RELEASE}


def test_words_that_are_stored() -> None:
    """What stands in PostgreSQL and in operators' filters does not change with a rename."""
    assert {state.value for state in State} == {
        *("held", "pending", "delivering", "retrying", "succeeded", "dead", "cancelled")
    }
    assert {kind.value for kind in Kind} == {"succeeded", "retry", "dead", "unknown"}
    assert {cause.value for cause in Cause} == {
        *("refused", "attempts_exhausted", "too_old", "unknown_confirm_first", "not_delivered")
    }
