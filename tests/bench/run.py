"""`make bench`: every figure beside its reference from the same run; under twenty minutes on two cores.

    python tests/bench/run.py [--only PART]... [--rounds N] [--rows N]

The parts: dispatch, pace, load and reconcile for the night; ingest, bulk, live, isolation and same_id for the live
lane; codecs for the envelope.

Writes bench/results.json and a table. Exits 1 where a figure misses what it must reach.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from rich.console import Console
from rich.table import Table

from tests.bench import bulk, codecs, dispatch, ingest, isolation, live, load, pace, reports, same_id
from tests.bench.rows import rows_of
from tests.bench.site import ROOT, Site, site

# What loads a million rows comes last: PostgreSQL cleans up behind it for minutes, on the same two cores.
_PARTS = (
    "ingest",
    "bulk",
    "same_id",
    "live",
    "isolation",
    "dispatch",
    "pace",
    "codecs",
    "load",
    "reconcile",
)


def main() -> int:
    """Run what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=_PARTS, action="append")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rows", type=int, default=1_000_000)
    asked = parser.parse_args()
    parts = asked.only or list(_PARTS)
    results: dict[str, Any] = {
        "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "machine": {
            "cores": os.cpu_count(),
            "load_before": os.getloadavg()[0],
            "python": platform.python_version(),
        },
    }
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="madeira-bench-") as folder, site(Path(folder)) as place:
        _measure(place, parts, results, rounds=asked.rounds, rows=asked.rows)
    results["seconds"] = round(time.monotonic() - started)
    results["parts_at"] = dict.fromkeys(parts, results["at"])
    target = ROOT / "bench" / "results.json"
    target.parent.mkdir(exist_ok=True)
    if target.exists():
        # What was not asked for this time stays from the run before, with the time of that run.
        before = json.loads(target.read_text())
        results = {**before, **results, "parts_at": {**before.get("parts_at", {}), **results["parts_at"]}}
    target.write_text(json.dumps(results, indent=2) + "\n")
    return _show(results, parts)


def _measure(place: Site, parts: list[str], results: dict[str, Any], *, rounds: int, rows: int) -> None:
    for part in parts:
        print(f"… {part}", flush=True)
        match part:
            case "dispatch":
                results[part] = asdict(dispatch.measure(place, rounds=rounds))
            case "pace":
                results[part] = [asdict(pace.measure(place, qps)) for qps in (2, 50, 300, 1000)]
            case "load":
                results[part] = asdict(load.measure(place, rows=rows))
            case "ingest":
                results[part] = [asdict(each) for each in ingest.measure(place, rounds=max(5, rounds))]
            case "bulk":
                results[part] = asdict(bulk.measure(place, rounds=rounds + 2))
            case "live":
                results[part] = asdict(live.measure(place))
            case "isolation":
                results[part] = asdict(isolation.measure(place))
            case "same_id":
                results[part] = [asdict(each) for each in same_id.measure(place)]
            case "codecs":
                results[part] = [asdict(each) for each in codecs.measure()]
            case _:
                results[part] = asdict(reports.measure(place, items=rows))


def _show(results: dict[str, Any], parts: list[str]) -> int:
    table = Table(title=f"Madeira's bench, {results['at']}", title_justify="left")
    for column in ("figure", "measured", "reference in the same run", "must reach"):
        table.add_column(column)
    missed = 0
    for figure, measured, reference, must, reached in rows_of(results, parts):
        missed += not reached
        table.add_row(
            figure,
            measured,
            reference,
            must if reached else f"{must}  MISSED",
            style="" if reached else "red",
        )
    Console(width=None if sys.stdout.isatty() else 150).print(table)
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main())
