"""Failpoints: a named step kills the process, and nothing else does."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from streams.checkpoint import ENVIRONMENT_NAME

PROGRAM = """
from streams.checkpoint import checkpoint
for name in ("send-before", "send-after", "send-after", "send-after"):
    print(name, flush=True)
    checkpoint(name)
"""


def run(failpoint: str | None) -> tuple[int, list[str]]:
    """The exit code of a process with that failpoint, and the steps that it came to."""
    environ = {key: value for key, value in os.environ.items() if key != ENVIRONMENT_NAME}
    environ["PYTHONPATH"] = os.pathsep.join(sys.path)
    if failpoint is not None:
        environ[ENVIRONMENT_NAME] = failpoint
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=environ, capture_output=True, text=True, timeout=60, check=False
    )
    return done.returncode, done.stdout.split()


@pytest.mark.parametrize(
    ("failpoint", "steps"),
    [("send-before", 1), ("send-after", 2), ("send-after:1", 2), ("send-after:3", 4)],
)
def test_killed_at_the_step(failpoint: str, steps: int) -> None:
    """By SIGKILL at the n-th pass, so that nothing can clean up."""
    code, passed = run(failpoint)
    assert (code, len(passed)) == (-signal.SIGKILL, steps)


@pytest.mark.parametrize("failpoint", [None, "", "another-step", "send-after:4", "send"])
def test_otherwise_nothing_happens(failpoint: str | None) -> None:
    """Without it, with another one, and where the step is not passed often enough."""
    code, passed = run(failpoint)
    assert (code, len(passed)) == (0, 4)
