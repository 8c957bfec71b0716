"""Whether a batch may be released: the last look before its rows can be sent."""

from __future__ import annotations

from dataclasses import dataclass

from pipelines.manifest import Line, Manifest, Sum
from streams.money import render


@dataclass(frozen=True, slots=True)
class Release:
    """Every row of the source is accounted for."""


@dataclass(frozen=True, slots=True)
class Refuse:
    """Something does not add up; `reasons` say what, one for each partner and currency."""

    reasons: tuple[str, ...]


def decide(manifest: Manifest, *, received: int) -> Release | Refuse:
    """Compare the source's own totals with what was written. `received` is the number of rows that came over."""
    reasons = [_difference(line) for line in manifest.lines if not line.agrees]
    if manifest.expected_count != received:
        reasons.append(f"the source counts {manifest.expected_count} rows and handed over {received}")
    return Refuse(tuple(reasons)) if reasons else Release()


def _difference(line: Line) -> str:
    accounted = line.loaded + line.already_known
    return (
        f"{line.partner}: the source counts {_words(line.expected, line.currency)}, "
        f"loaded and known are {_words(accounted, line.currency)}"
    )


def _words(total: Sum, currency: str) -> str:
    if not currency:
        return f"{total.count} rows"
    return f"{total.count} rows with {render(total.minor, currency)} {currency}"
