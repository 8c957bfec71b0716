"""The manifest: what the source held, what was known before and what was loaded, per partner and currency."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, order=True)
class Group:
    """What is counted together. `currency` is empty for a job without amounts."""

    partner: str
    currency: str


@dataclass(frozen=True, slots=True)
class Sum:
    """A number of rows and their amounts in minor units of the group's currency; a sum may exceed a bigint."""

    count: int = 0
    minor: int = 0

    def __add__(self, other: Sum) -> Sum:
        return Sum(self.count + other.count, self.minor + other.minor)


NOTHING = Sum()

Sums = Mapping[Group, Sum]


@dataclass(frozen=True, slots=True)
class Line:
    """One group. `expected` is the source's own count of it, `loaded` comes from the rows written.

    `already_known` are rows whose id was loaded by an earlier batch with the same body.
    """

    partner: str
    currency: str
    expected: Sum
    already_known: Sum
    loaded: Sum

    @property
    def agrees(self) -> bool:
        """Every row of the source is either loaded or known, to the minor unit."""
        return self.expected == self.already_known + self.loaded


@dataclass(frozen=True, slots=True)
class Manifest:
    """All groups in order, and `ids_sha256`: hex SHA-256 over every id of the source, each followed by a newline,
    in the order of the job's query.
    """

    lines: tuple[Line, ...]
    ids_sha256: str

    @property
    def expected_count(self) -> int:
        """Rows that the source counted."""
        return sum(line.expected.count for line in self.lines)

    @property
    def already_known(self) -> int:
        """Rows that were not loaded again."""
        return sum(line.already_known.count for line in self.lines)

    @property
    def loaded_count(self) -> int:
        """Rows written."""
        return sum(line.loaded.count for line in self.lines)

    def amounts(self) -> dict[str, int]:
        """Currency → minor units loaded."""
        sums: dict[str, int] = {}
        for line in self.lines:
            if line.currency:
                sums[line.currency] = sums.get(line.currency, 0) + line.loaded.minor
        return sums


def draw_up(*, expected: Sums, already_known: Sums, loaded: Sums, ids_sha256: str) -> Manifest:
    """The three countings side by side; a group that one of them lacks counts as nothing there."""
    groups = sorted({*expected, *already_known, *loaded})
    return Manifest(
        lines=tuple(
            Line(
                partner=group.partner,
                currency=group.currency,
                expected=expected.get(group, NOTHING),
                already_known=already_known.get(group, NOTHING),
                loaded=loaded.get(group, NOTHING),
            )
            for group in groups
        ),
        ids_sha256=ids_sha256,
    )
