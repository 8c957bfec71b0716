"""A changed jobs.toml, taken while everything runs: read and verified whole, or refused and the old one kept."""

from __future__ import annotations

import logging
import tomllib
from collections.abc import Callable, Iterator, Mapping
from hashlib import sha256
from pathlib import Path

from madeira.settings import Settings, config_path, load
from streams.errors import ConfigurationError

log = logging.getLogger(__name__)

_MOST_MISTAKES_LOGGED = 20


class Watched:
    """The file that `environ` names, and its query files. `settings` is what the process goes by so far.

    `require` raises ConfigurationError for settings that are right but that this process cannot go by, like a
    partner without its key.
    """

    def __init__(
        self,
        environ: Mapping[str, str],
        settings: Settings,
        *,
        require: Callable[[Settings], None] | None = None,
    ) -> None:
        self.settings = settings
        self.refusals = 0
        """How many contents were refused since the start."""
        self.mistakes: tuple[str, ...] = ()
        """What is wrong with the file as it stands; empty while it is as `settings` say."""
        self._environ = environ
        self._config = config_path(environ)
        self._require = require
        self._seen = b""
        self._judged = b""
        self._queries: tuple[bytes, tuple[Path, ...]] = (b"", ())

    def look(self) -> Settings | None:
        """The new settings, once after a change; None when nothing has changed, or what has is refused.

        A content is read when two looks in a row have found the same: an editor that is still writing, or puts a
        new file in the old one's place, is never taken at its half. Reads files and may take some 10 ms after a
        change, so call it in a thread of its own where milliseconds count; not in two at once.
        """
        content = self._content()
        before, self._seen = self._seen, content
        if content != before or content == self._judged:
            return None
        try:
            settings = load(self._environ)
            if self._require is not None:
                self._require(settings)
        except ConfigurationError as error:
            self._refuse(content, error)
            return None
        if self._content() != content:
            return None  # changed while it was read: another look decides
        first, self._judged = not self._judged, content
        self.mistakes = ()
        if first and settings == self.settings:
            return None
        log.info("configuration_taken", extra={"fields": {"config": str(self._config), **_counts(settings)}})
        if settings == self.settings:
            return None
        self.settings = settings
        return settings

    def _refuse(self, content: bytes, error: ConfigurationError) -> None:
        if self._content() != content:
            return
        self._judged = content
        self.mistakes = error.mistakes
        self.refusals += 1
        shown = list(error.mistakes[:_MOST_MISTAKES_LOGGED])
        fields = {"config": str(self._config), "mistakes": shown, "count": len(error.mistakes)}
        log.error("configuration_refused", extra={"fields": fields})

    def _content(self) -> bytes:
        """A digest of all that is read: the file's bytes and those of the queries that it names."""
        text = _bytes(self._config)
        whole = sha256(text)
        for path in self._query_files(text):
            whole.update(sha256(_bytes(path)).digest())
        return whole.digest()

    def _query_files(self, text: bytes) -> tuple[Path, ...]:
        # Parsed once for each content: a long file costs more than a second look may.
        if self._queries[0] != text:
            self._queries = (text, tuple(self._config.parent / name for name in _named(text)))
        return self._queries[1]


def _bytes(path: Path) -> bytes:
    """What a file holds; one that cannot be read is a content, too."""
    try:
        return path.read_bytes()
    except OSError as error:
        return f"cannot be read: {type(error).__name__}".encode()


def _named(text: bytes) -> Iterator[str]:
    """The query files that a jobs.toml names, so far as it can be read."""
    try:
        root = tomllib.loads(text.decode("utf-8-sig"))
    except (ValueError, RecursionError):
        return
    jobs = root.get("jobs")
    for job in jobs if isinstance(jobs, list) else ():
        source = job.get("source") if isinstance(job, dict) else None
        name = source.get("query_file") if isinstance(source, dict) else None
        if isinstance(name, str) and "\0" not in name:
            yield name


def _counts(settings: Settings) -> dict[str, int]:
    return {
        "jobs": len(settings.jobs),
        "partners": len(settings.partners),
        "sources": len(settings.sources),
        "routes": len(settings.routes),
    }
