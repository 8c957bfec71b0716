"""Leaving for certain: a process that was asked to leave, or is stuck, is gone within its bound.

A library may not let go when it is cancelled (psycopg waits for the answer of a server that is frozen), and a thread
cannot be cancelled at all. Whatever is cut off is what a kill cuts off, and every step of Madeira survives that.
"""

from __future__ import annotations

import logging
import os
import threading

log = logging.getLogger(__name__)

FORCED = 1
"""The exit code of who had to be cut off."""


def leave_within(seconds: float) -> None:
    """End this process in so many seconds, if it has not ended by then."""
    timer = threading.Timer(seconds, _leave, (seconds,))
    timer.daemon = True
    timer.start()


def _leave(seconds: float) -> None:
    log.error("left_by_force", extra={"fields": {"after_s": seconds}})
    os._exit(FORCED)
