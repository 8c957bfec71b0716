"""Money is exact in both directions, or refused."""

from __future__ import annotations

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streams.money import (
    EXPONENTS,
    LARGEST_MINOR,
    SMALLEST_MINOR,
    MoneyError,
    exponent,
    render,
    to_decimal,
    to_minor,
)

# The last two would pass if they were first rounded to the default context's 28 digits.
AMOUNTS = [
    "0.001",
    "NaN",
    "sNaN",
    "Infinity",
    "-Infinity",
    "92233720368547758.08",
    "1E+999999",
    "1E-999999",
    "1234567890123456.0000000000000000000000001",
    "1." + "0" * 70 + "1",
]

currencies = st.sampled_from(sorted(EXPONENTS))


@pytest.mark.parametrize(("currency", "decimals"), [("CZK", 2), ("JPY", 0), ("BHD", 3), ("CLF", 4)])
def test_decimals_come_from_iso_4217(currency: str, decimals: int) -> None:
    """Two decimals are not a constant."""
    assert exponent(currency) == decimals


@pytest.mark.parametrize("text", ["XAU", "XXX", "czk", "", "CZ", "ZZZ"])
def test_what_is_no_currency_is_refused(text: str) -> None:
    """Gold, lower case and made-up codes have no minor unit, and the text names the code."""
    with pytest.raises(MoneyError, match=repr(text)):
        exponent(text)


@given(st.integers(SMALLEST_MINOR, LARGEST_MINOR), currencies)
def test_minor_units_come_back_unchanged(minor: int, currency: str) -> None:
    """to_decimal and render are the inverses of to_minor over the whole bigint."""
    assert to_minor(to_decimal(minor, currency), currency) == minor
    assert to_minor(Decimal(render(minor, currency)), currency) == minor


@given(st.integers(SMALLEST_MINOR, LARGEST_MINOR), currencies)
def test_rendered_amounts_carry_all_decimals(minor: int, currency: str) -> None:
    """A report's cell has exactly the currency's decimals and never an exponent."""
    _, _, decimals = render(minor, currency).partition(".")
    assert len(decimals) == exponent(currency)
    assert "E" not in render(minor, currency)


def test_sums_beyond_a_bigint_still_render() -> None:
    """A total of many rows may be larger than one row can be."""
    assert render(LARGEST_MINOR * 1_000_000, "CZK") == "92233720368547758070000.00"


@pytest.mark.parametrize("amount", AMOUNTS)
def test_inexact_and_endless_amounts_are_refused(amount: str) -> None:
    """Nothing is rounded and nothing overflows."""
    with pytest.raises(MoneyError):
        to_minor(Decimal(amount), "CZK")


def test_zeros_behind_the_last_decimal_are_exact() -> None:
    """2452.000 is 2452.00, and 1E+3 is a thousand."""
    assert to_minor(Decimal("2452.000"), "CZK") == 245200
    assert to_minor(Decimal("1E+3"), "CZK") == 100000
