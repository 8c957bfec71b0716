"""Log lines as facts: one JSON object a line on stderr, a constant event name and fields beside it.

The same line is written at most once a second; what was left out is counted in the next one.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime

import msgspec

_LIBRARIES = ("apscheduler", "alembic", "aiohttp", "asyncio", "psycopg")


class Line(logging.Formatter):
    """Renders a record as one JSON object."""

    def format(self, record: logging.LogRecord) -> str:
        fields: dict[str, object] = getattr(record, "fields", {})
        line: dict[str, object] = {
            "at": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "event": record.getMessage(),
            "in": record.name,
            **fields,
        }
        if record.exc_info:
            line["trace"] = self.formatException(record.exc_info)
        return msgspec.json.encode(line, enc_hook=str).decode()


class OncePerSecond(logging.Filter):
    """Lets a line of the same logger, event, level, partner and service pass once a second of `clock`."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._seen: dict[tuple[str, str, int], tuple[float, int]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        fields: dict[str, object] = getattr(record, "fields", {})
        subject = str(fields.get("partner", "")) + str(fields.get("service", ""))
        key = (record.name, str(record.msg) + subject, record.levelno)
        now = self._clock()
        last, left_out = self._seen.get(key, (float("-inf"), 0))
        if now - last < 1.0:
            self._seen[key] = (last, left_out + 1)
            return False
        if len(self._seen) > 1000:
            self._seen.clear()
        self._seen[key] = (now, 0)
        if left_out:
            record.fields = {**fields, "left_out": left_out}
        return True


def set_up(level: str = "INFO") -> None:
    """Send log lines of this process to stderr; libraries speak only from WARNING on."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(Line())
    handler.addFilter(OncePerSecond())
    logging.basicConfig(level=level, handlers=[handler], force=True)
    for name in _LIBRARIES:
        logging.getLogger(name).setLevel(logging.WARNING)
