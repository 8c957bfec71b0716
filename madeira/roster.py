"""Which partners a running worker has: those of jobs.toml, and for a while those that were taken out of it.

Who was taken out is sent nothing more, but fenced, recorded and taken over like all others until nobody can have
anything of theirs in hand: a recovery without them would wait for somebody who can never hand in.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from sinks.partner import Partner

_KEPT_S = 60.0
"""How much longer than its timeout a partner stays known: all processes have read jobs.toml by then."""


class Roster:
    """One mapping that everybody in this process holds, and that is changed in place."""

    def __init__(self, partners: Mapping[str, Partner]) -> None:
        self.partners = dict(partners)
        self._wanted = dict(partners)
        self._closed: dict[str, float] = {}
        """When a partner was taken out."""

    def serves(self, name: str) -> bool:
        """Whether jobs.toml has this partner, as we know it."""
        return name in self.partners and name not in self._closed

    def adopt(self, partners: Mapping[str, Partner], now: float) -> None:
        """Follow jobs.toml: these are its partners from `now` (s, monotonic) on.

        Whoever changed the tenant has other keys in Redis: as if taken out, and, once that is over, as if new.
        """
        self._wanted = dict(partners)
        for name, known in self.partners.items():
            wanted = partners.get(name)
            if wanted is None or wanted.tenant != known.tenant:
                self._closed.setdefault(name, now)
                continue
            self._closed.pop(name, None)
            if wanted != known:  # whoever did not change stays the same object, which others compare by
                self.partners[name] = wanted
        for name, wanted in partners.items():
            self.partners.setdefault(name, wanted)

    def let_go(self, now: float, busy: Collection[str]) -> list[str]:
        """Forget who was taken out long enough ago and is not `busy`, and name them."""
        gone = [
            name
            for name, since in self._closed.items()
            if name not in busy and now - since > self.partners[name].timeout.total_seconds() + _KEPT_S
        ]
        for name in gone:
            del self._closed[name], self.partners[name]
            if name in self._wanted:
                self.partners[name] = self._wanted[name]
        return gone
