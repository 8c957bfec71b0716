"""The gate: a batch is released only when every row of the source is accounted for, to the minor unit."""

from __future__ import annotations

import pytest

from pipelines.gate import Refuse, Release, decide
from pipelines.manifest import Group, Manifest, Sum, draw_up

AB, CD = Group("AB", "CZK"), Group("CD", "CZK")


def manifest(
    expected: dict[Group, Sum], loaded: dict[Group, Sum], known: dict[Group, Sum] | None = None
) -> Manifest:
    """A manifest whose hash does not matter."""
    return draw_up(expected=expected, already_known=known or {}, loaded=loaded, ids_sha256="")


def test_what_agrees_is_released() -> None:
    """Loaded and known together are what the source counted."""
    drawn = manifest({AB: Sum(3, 300), CD: Sum(1, 5)}, {AB: Sum(2, 200), CD: Sum(1, 5)}, {AB: Sum(1, 100)})
    assert decide(drawn, received=4) == Release()


def test_nothing_is_a_batch_too() -> None:
    """A night without rows is released as that."""
    assert decide(manifest({}, {}), received=0) == Release()


@pytest.mark.parametrize("loaded", [Sum(2, 300), Sum(3, 299), Sum(4, 300), Sum(3, 301)])
def test_one_row_or_one_cent_refuses(loaded: Sum) -> None:
    """The reason names the partner and both sides in its currency."""
    decision = decide(manifest({AB: Sum(3, 300)}, {AB: loaded}), received=3)
    assert isinstance(decision, Refuse)
    assert decision.reasons[0].startswith("AB: the source counts 3 rows with 3.00 CZK, loaded and known are")


def test_right_in_total_and_wrong_by_partner_refuses() -> None:
    """A row that went to another bank is a difference at both."""
    decision = decide(manifest({AB: Sum(2, 2), CD: Sum(1, 1)}, {AB: Sum(1, 1), CD: Sum(2, 2)}), received=3)
    assert isinstance(decision, Refuse)
    assert [reason[:2] for reason in decision.reasons] == ["AB", "CD"]


def test_rows_lost_on_the_way_refuse() -> None:
    """The source's count is also compared with how many rows came over."""
    decision = decide(manifest({AB: Sum(2, 2)}, {AB: Sum(2, 2)}), received=1)
    assert decision == Refuse(("the source counts 2 rows and handed over 1",))


def test_without_amounts_rows_are_compared() -> None:
    """A job without amounts has an empty currency, and its reasons speak of rows alone."""
    decision = decide(manifest({Group("AB", ""): Sum(2)}, {Group("AB", ""): Sum(1)}), received=2)
    assert decision == Refuse(("AB: the source counts 2 rows, loaded and known are 1 rows",))
