"""A day's report as files: CSV that no reader can misread, read back, then published whole or not at all."""

from __future__ import annotations

import csv
import errno
import fcntl
import gzip
import hashlib
import json
import os
import re
import secrets
import shutil
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path

import pandas as pd

from streams.checkpoint import checkpoint
from streams.errors import ReportMismatch

BOM = b"\xef\xbb\xbf"

FORMULA = r"^[ \t\r\n\u00a0\ufeff]*[=+\-@\uff1d\uff0b\uff0d\uff20]|^[\t\r\n]"
"""How a cell begins that a spreadsheet would run (OWASP, CSV Injection). Python and PostgreSQL read it."""

INNER_FORMULA = r"([;\t\r\n] *)([=+\-@\uff1d\uff0b\uff0d\uff20])"
"""The same inside a text: a reader that splits at semicolons or line ends makes a cell of it."""

_DRAFT = ".writing-"
_CHUNK = 1 << 18
# 1 to 9; beyond 3 the file shrinks little and the time doubles.
_LEVEL = 3

Cell = str | int | Decimal | None
Buffer = bytes | bytearray | memoryview


def guard(text: str) -> str:
    """The text with an apostrophe in front if a spreadsheet would take it for a formula."""
    return re.sub(FORMULA, lambda match: "'" + match.group(), text, count=1)


def guard_prose(text: str) -> str:
    """`guard`, and the same for what follows a semicolon, tab or line end inside the text."""
    return guard(re.sub(INNER_FORMULA, r"\1'\2", text))


@dataclass(frozen=True, slots=True)
class Written:
    """One finished file. `rows` counts records without the header; `sha256` is hex, of the bytes on disk."""

    name: str
    rows: int
    size: int
    sha256: str


class _File:
    """Writes bytes to disk, plain or as gzip, and hashes what reaches the disk."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = path.open("xb")
        self._hash = hashlib.sha256()
        self._size = 0
        # wbits 31: a gzip header without name or time, so that equal rows make equal bytes.
        self._gzip = zlib.compressobj(_LEVEL, zlib.DEFLATED, 31) if path.suffix == ".gz" else None

    def write(self, data: Buffer) -> None:
        self._put(self._gzip.compress(data) if self._gzip else bytes(data))

    def _put(self, data: bytes) -> None:
        self._hash.update(data)
        self._size += len(data)
        self._file.write(data)

    def finish(self, rows: int) -> Written:
        if self._gzip:
            self._put(self._gzip.flush())
        self._file.flush()
        os.fsync(self._file.fileno())
        self.close()
        return Written(self._path.name, rows, self._size, self._hash.hexdigest())

    def close(self) -> None:
        self._file.close()


@contextmanager
def _file(path: Path) -> Iterator[_File]:
    file = _File(path)
    try:
        yield file
    finally:
        file.close()


def as_read(cell: Cell) -> str:
    """The text that a reader of a written table finds in the cell's place."""
    match cell:
        case None:
            return ""
        case str():
            return guard_prose(cell)
        case _:
            return str(cell)


def write_table(path: Path, columns: Sequence[str], rows: Sequence[Sequence[Cell]]) -> Written:
    """A small table through pandas: text quoted and guarded, numbers bare, None an empty cell, CRLF, BOM."""
    cells = [[guard_prose(cell) if isinstance(cell, str) else cell for cell in row] for row in rows]
    # dtype=object: an int stays an int and a Decimal keeps its decimals, whatever is missing beside it.
    frame = pd.DataFrame(cells, columns=list(columns), dtype=object)
    text = frame.to_csv(index=False, lineterminator="\r\n", quoting=csv.QUOTE_NONNUMERIC, na_rep="")
    with _file(path) as file:
        file.write(BOM + text.encode("utf-8"))
        return file.finish(len(rows))


def write_rows(path: Path, rows: Iterable[Buffer]) -> Written:
    """A file of any size from `COPY … TO STDOUT (FORMAT csv, HEADER)`; gzip when its name ends in `.gz`.

    Each of `rows` is one record that ends in a line feed, the first is the header.
    """
    count = -1
    chunk = bytearray(BOM)
    with _file(path) as file:
        for row in rows:
            chunk += row
            # Only the record's own end: line feeds inside a quoted cell stay what they were.
            chunk[-1:] = b"\r\n"
            count += 1
            if len(chunk) >= _CHUNK:
                file.write(chunk)
                chunk.clear()
        file.write(chunk)
        return file.finish(count)


def read_table(path: Path) -> pd.DataFrame:
    """What a careful reader sees: every cell as the text that was written."""
    return pd.read_csv(path, dtype=str, keep_default_na=False, na_filter=False, encoding="utf-8-sig")


def read_rows(path: Path, columns: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """The named columns of every record of a file of any size. Raises `ReportMismatch` if malformed."""
    opened = gzip.open if path.suffix == ".gz" else open
    # A partner's answer may be longer than the module's default of 128 KiB.
    csv.field_size_limit(1 << 30)
    with opened(path, "rt", encoding="utf-8-sig", newline="") as file:
        reader = csv.reader(file, strict=True)
        try:
            header = next(reader)
            places = [header.index(column) for column in columns]
            for row in reader:
                if len(row) != len(header):
                    raise ReportMismatch(f"{path.name} line {reader.line_num} has {len(row)} cells")
                yield tuple(row[place] for place in places)
        except (csv.Error, ValueError, StopIteration, EOFError, OSError, zlib.error) as error:
            raise ReportMismatch(f"{path.name} can't be read back: {error}") from error


@contextmanager
def draft(day: Path) -> Iterator[Path]:
    """A folder beside the published ones, removed at the end unless `publish` renamed it.

    What killed runs left behind is removed first; one that somebody still writes into is locked and stays.
    """
    day.mkdir(parents=True, exist_ok=True)
    for leftover in day.glob(f"{_DRAFT}*"):
        _remove_if_abandoned(leftover)
    folder, lock = _locked_folder(day)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def _locked_folder(day: Path) -> tuple[Path, int]:
    while True:
        folder = day / f"{_DRAFT}{secrets.token_hex(6)}"
        folder.mkdir()
        lock = _lock(folder)
        if lock is not None:
            return folder, lock
        # Another run cleaned up between the two lines above.


def _lock(folder: Path) -> int | None:
    """A descriptor that holds the folder's lock, None when somebody else has it or the folder is gone."""
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except FileNotFoundError:
        return None
    try:
        # The kernel lets go of it however the process ends.
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if folder.exists():
            return descriptor
    except BlockingIOError:
        pass
    os.close(descriptor)
    return None


def _remove_if_abandoned(folder: Path) -> None:
    lock = _lock(folder)
    if lock is not None:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def next_revision(day: Path) -> int:
    """One above the highest that is published in this folder, 1 for none."""
    numbers = [int(entry.name[1:]) for entry in day.glob("r*") if entry.name[1:].isdecimal()]
    return max(numbers, default=0) + 1


def publish(folder: Path, day: Path, revision: int, manifest: Mapping[str, object]) -> bool:
    """Add `manifest.json` and rename the draft to `r<revision>`, durably; False if that revision exists."""
    path = folder / "manifest.json"
    path.unlink(missing_ok=True)
    with _file(path) as file:
        file.write(json.dumps(manifest, indent=2, ensure_ascii=False).encode("utf-8") + b"\n")
        file.finish(0)
    _sync(folder)
    target = day / f"r{revision}"
    checkpoint("reconcile-before-rename")
    try:
        # Atomic, and refused by the kernel when the name is taken: published folders are never empty.
        folder.rename(target)
    except OSError as error:
        if error.errno in {errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR}:
            return False
        raise
    _sync(day)
    _sync(day.parent)
    return True


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
