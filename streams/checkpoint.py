"""Failpoints: named steps of an event's way at which a test may kill the process.

A no-op unless `MADEIRA_FAILPOINT` is set when the process starts: `settle-after` kills at the first pass,
`settle-after:40` at the fortieth. The kill is SIGKILL, so nothing can clean up.
"""

from __future__ import annotations

import os
import signal

ENVIRONMENT_NAME = "MADEIRA_FAILPOINT"


class _Failpoint:
    """Counts down the passes of one named step."""

    __slots__ = ("_left", "name")

    def __init__(self, specification: str) -> None:
        self.name, _, passes = specification.partition(":")
        self._left = int(passes or 1)

    def passed(self, name: str) -> None:
        """Kill this process when the step has been passed often enough."""
        if name != self.name:
            return
        self._left -= 1
        if self._left == 0:
            os.kill(os.getpid(), signal.SIGKILL)


_armed = _Failpoint(os.environ[ENVIRONMENT_NAME]) if os.environ.get(ENVIRONMENT_NAME) else None


def checkpoint(name: str) -> None:
    """Say that the step `name` was reached. Costs one comparison in production."""
    if _armed is not None:
        _armed.passed(name)
