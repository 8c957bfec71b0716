"""Leaving for certain, seen from outside."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]

HANGS = """
import threading
from madeira.exit import leave_within
threading.Thread(target=threading.Event().wait).start()
leave_within(0.1)
"""


def test_who_hangs_is_cut_off() -> None:
    """A thread that never ends keeps no process longer than it was given; that is an error, and said."""
    done = subprocess.run(
        [sys.executable, "-c", HANGS], cwd=ROOT, capture_output=True, text=True, timeout=30, check=False
    )
    assert done.returncode == 1
    assert "left_by_force" in done.stderr
