"""Dead letters as a file, of any number: CSV for a spreadsheet or JSON lines for a program. Imported late: pandas."""

from __future__ import annotations

import os
from enum import StrEnum
from pathlib import Path

from pipelines.balance import decimal
from pipelines.dead_letters import Filter
from pipelines.report import FORMULA, INNER_FORMULA, write_rows
from sinks.snapshot import Snapshot, snapshot
from streams.errors import ReportNotWritten


class Format(StrEnum):
    """By the end of the file's name."""

    CSV = "csv"
    JSONL = "jsonl"


def export(database_url: str, which: Filter, path: Path, form: Format) -> int:
    """Write what `which` means as of one moment; returns how many.

    The file appears whole or not at all; one of that name is never overwritten. Raises `ReportNotWritten` and
    `StoreUnavailable`.
    """
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        if path.exists():
            raise ReportNotWritten(f"{path} exists: name another file, or remove it")
        try:
            with snapshot(database_url, name="export") as record:
                count = _write(draft, record, which, form)
            os.link(draft, path)  # fails where somebody made one meanwhile, a rename would take its place
        finally:
            draft.unlink(missing_ok=True)
    except OSError as error:
        said = error.strerror or type(error).__name__
        raise ReportNotWritten(
            f"{path} can't be written ({said}): mend that, or name another file"
        ) from error
    return count


def _write(draft: Path, record: Snapshot, which: Filter, form: Format) -> int:
    currencies = [row[0] for row in record.rows("dead/currencies", {})]
    parameters = {
        **which.parameters(),
        "currencies": currencies,
        "units": [decimal(1, currency) for currency in currencies],
    }
    if form is Format.CSV:
        csv = record.copy("dead/export_csv", {**parameters, "formula": FORMULA, "inner": INNER_FORMULA})
        return write_rows(draft, csv).rows
    count = 0
    with draft.open("xb") as file:
        for line in record.copy("dead/export_jsonl", parameters):
            file.write(line)
            count += 1
        file.flush()
        os.fsync(file.fileno())
    return count
