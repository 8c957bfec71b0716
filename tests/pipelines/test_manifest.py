"""The manifest: three countings side by side."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pipelines.manifest import Group, Sum, draw_up

groups = st.builds(Group, st.sampled_from(["AB", "CD", "EF"]), st.sampled_from(["CZK", "EUR", "JPY"]))
sums = st.dictionaries(groups, st.builds(Sum, st.integers(0, 10**9), st.integers(0, 10**25)))


@given(sums, sums, sums)
def test_no_group_is_lost(
    expected: dict[Group, Sum], known: dict[Group, Sum], loaded: dict[Group, Sum]
) -> None:
    """Each group of any counting is one line, in order, and the totals are the totals of what went in."""
    manifest = draw_up(expected=expected, already_known=known, loaded=loaded, ids_sha256="00")
    named = [Group(line.partner, line.currency) for line in manifest.lines]
    assert named == sorted({*expected, *known, *loaded})
    assert manifest.expected_count == sum(one.count for one in expected.values())
    assert manifest.already_known == sum(one.count for one in known.values())
    assert manifest.loaded_count == sum(one.count for one in loaded.values())


def test_amounts_are_added_within_a_currency_only() -> None:
    """Crowns and yen are never one sum; a group without a currency has no amount."""
    loaded = {
        Group("AB", "CZK"): Sum(1, 150),
        Group("CD", "CZK"): Sum(2, 50),
        Group("CD", "JPY"): Sum(1, 7),
        Group("EF", ""): Sum(1, 0),
    }
    manifest = draw_up(expected={}, already_known={}, loaded=loaded, ids_sha256="00")
    assert manifest.amounts() == {"CZK": 200, "JPY": 7}


def test_a_line_agrees_when_loaded_and_known_are_all() -> None:
    """Expected = already known + loaded."""
    group = Group("AB", "CZK")
    drawn = draw_up(
        expected={group: Sum(3, 30)},
        already_known={group: Sum(1, 10)},
        loaded={group: Sum(2, 20)},
        ids_sha256="",
    )
    assert drawn.lines[0].agrees
    assert (
        not draw_up(expected={group: Sum(3, 30)}, already_known={}, loaded={}, ids_sha256="").lines[0].agrees
    )
