"""Who is a partner at the moment: what jobs.toml says, and those who were taken out until nobody has theirs."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from madeira.roster import Roster
from sinks.partner import Partner
from tests.partner import partner

AB = partner("http://127.0.0.1:9/ab", name="AB")
CD = partner("http://127.0.0.1:9/cd", name="CD")
LONG_S = 120.0


def test_who_comes_is_seen_by_whoever_holds_the_mapping() -> None:
    """It is changed in place; who did not change stays the very same."""
    roster = Roster({"AB": AB})
    held = roster.partners
    roster.adopt({"AB": replace(AB), "CD": CD}, now=0.0)
    assert held == {"AB": AB, "CD": CD}
    assert held["AB"] is AB
    roster.adopt({"AB": replace(AB, qps=7), "CD": CD}, now=1.0)
    assert (held["AB"].qps, held["CD"] is CD) == (7, True)


def test_who_was_taken_out_stays_known_for_a_while() -> None:
    """Nobody serves it; it is forgotten once it is not busy and no process can have anything of it."""
    roster = Roster({"AB": AB, "CD": CD})
    roster.adopt({"CD": CD}, now=0.0)
    assert (roster.serves("AB"), roster.serves("CD"), roster.serves("EF")) == (False, True, False)
    assert roster.let_go(1.0, busy=()) == []
    assert roster.let_go(LONG_S, busy=("AB",)) == []
    assert "AB" in roster.partners
    assert roster.let_go(LONG_S, busy=()) == ["AB"]
    assert roster.partners == {"CD": CD}


def test_who_comes_back_was_never_gone() -> None:
    """It is served again, and by what jobs.toml says now."""
    roster = Roster({"AB": AB})
    roster.adopt({}, now=0.0)
    roster.adopt({"AB": replace(AB, qps=7)}, now=1.0)
    assert roster.serves("AB")
    assert roster.let_go(LONG_S, busy=()) == []
    assert roster.partners["AB"].qps == 7


def test_another_tenant_is_another_partner() -> None:
    """First the old one goes, then the new one comes: at no time are there two of one name."""
    roster = Roster({"AB": AB})
    moved = replace(AB, tenant="other")
    roster.adopt({"AB": moved}, now=0.0)
    assert (roster.partners["AB"], roster.serves("AB")) == (AB, False)
    roster.adopt({"AB": moved}, now=1.0)
    assert roster.let_go(LONG_S, busy=()) == ["AB"]
    assert (roster.partners["AB"], roster.serves("AB")) == (moved, True)


_CHOICES = st.dictionaries(
    st.sampled_from(["AB", "CD"]), st.tuples(st.sampled_from(["x", "y"]), st.integers(1, 3))
)


@given(st.lists(st.tuples(_CHOICES, st.floats(0, 100), st.booleans()), min_size=1))
def test_whatever_comes_and_goes_all_is_as_jobs_toml_says_in_the_end(
    changes: list[tuple[dict[str, tuple[str, int]], float, bool]],
) -> None:
    """Who is served is who the file has, under the tenant that it had; who is busy is never forgotten."""
    roster = Roster({})
    held, now, wanted = roster.partners, 0.0, dict[str, Partner]()
    for file, passes, busy in changes:
        wanted = {
            name: replace(AB, name=name, tenant=tenant, qps=qps) for name, (tenant, qps) in file.items()
        }
        before = dict(held)
        roster.adopt(wanted, now)
        assert held.keys() == before.keys() | wanted.keys()
        for name, known in before.items():
            assert held[name].tenant == known.tenant
        assert {name for name in held if roster.serves(name)} == {
            name for name in wanted if held[name] == wanted[name]
        }
        now += passes
        roster.let_go(now, busy=tuple(held) if busy else ())
        assert not busy or held.keys() == before.keys() | wanted.keys()
    roster.let_go(now + LONG_S, busy=())
    assert held == wanted
    assert all(roster.serves(name) for name in wanted)
