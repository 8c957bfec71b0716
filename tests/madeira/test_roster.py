"""Who is a partner at the moment: what jobs.toml says, and those who were taken out until nobody has theirs."""

from __future__ import annotations

from dataclasses import replace

from madeira.roster import Roster
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
