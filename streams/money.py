"""Money between its two exact forms: a `Decimal` in units of its currency and an `int` in minor units.

The number of decimals comes from ISO 4217. Nothing here rounds: an amount that its currency cannot express
is refused.
"""

from __future__ import annotations

from decimal import Context, Decimal, Inexact
from types import MappingProxyType

from iso4217 import Currency

EXPONENTS: MappingProxyType[str, int] = MappingProxyType(
    {str(currency.code): int(currency.exponent) for currency in Currency if currency.exponent is not None}
)
"""Currency code → decimals. Codes without a minor unit (gold, test codes) are no money and are not in it."""

SMALLEST_MINOR, LARGEST_MINOR = -(2**63), 2**63 - 1
"""What a `bigint` holds."""

# Wide enough for any sum over a bigint's worth of rows; a surprise raises and never rounds.
_EXACT = Context(prec=60, traps=[Inexact])


class MoneyError(ValueError):
    """The currency is unknown, or the amount is not exact in it. The text says which."""


def exponent(currency: str) -> int:
    """Decimals of an ISO 4217 code: 2 for CZK, 0 for JPY, 3 for BHD. Raises `MoneyError` for other text."""
    try:
        return EXPONENTS[currency]
    except KeyError:
        raise MoneyError(f"{currency!r} is not an ISO 4217 currency with a minor unit") from None


def to_minor(amount: Decimal, currency: str) -> int:
    """`Decimal("2452.00")` CZK → 245200. Raises `MoneyError` if not exact, not finite or beyond a bigint."""
    minor = total_to_minor(amount, currency)
    if not SMALLEST_MINOR <= minor <= LARGEST_MINOR:
        raise MoneyError(f"{amount} {currency} is beyond what can be stored")
    return minor


def total_to_minor(total: Decimal, currency: str) -> int:
    """Like `to_minor` for a sum over many rows, which may be larger than a bigint. Raises `MoneyError`."""
    decimals = exponent(currency)
    if not total.is_finite():
        raise MoneyError(f"{total} is not an amount")
    if total.adjusted() > 40:
        # Before scaling: 1E+999999 would be written out in full.
        raise MoneyError(f"{total} {currency} is beyond what can be stored")
    try:
        scaled = _EXACT.scaleb(total, decimals)
        minor = int(scaled)
        exact = minor == scaled
    except Inexact:
        exact, minor = False, 0
    if not exact:
        raise MoneyError(f"{total} has more than the {decimals} decimals of {currency}")
    return minor


def to_decimal(minor: int, currency: str) -> Decimal:
    """245200 CZK → `Decimal("2452.00")`, with all decimals of the currency. Raises `MoneyError`."""
    return _EXACT.scaleb(Decimal(minor), -exponent(currency))


def render(minor: int, currency: str) -> str:
    """245200 CZK → "2452.00": plain digits, a point, no grouping. Raises `MoneyError`."""
    return f"{to_decimal(minor, currency):f}"
