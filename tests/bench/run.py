"""`make bench`: every figure beside its reference from the same run; under twelve minutes on two cores.

    python tests/bench/run.py [--only dispatch|pace|load|reconcile] [--rounds N] [--rows N]

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

from tests.bench import dispatch, load, pace, reports
from tests.bench.site import ROOT, Site, site

Row = tuple[str, str, str, str, bool]
_PARTS = ("dispatch", "pace", "load", "reconcile")


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
    target = ROOT / "bench" / "results.json"
    target.parent.mkdir(exist_ok=True)
    if target.exists():
        # What was not asked for this time stays from the run before, with the time of that run.
        results = {**json.loads(target.read_text()), **results}
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
            case _:
                results[part] = asdict(reports.measure(place, items=rows))


def _show(results: dict[str, Any], parts: list[str]) -> int:
    table = Table(title=f"Madeira's bench, {results['at']}", title_justify="left")
    for column in ("figure", "measured", "reference in the same run", "must reach"):
        table.add_column(column)
    missed = 0
    for figure, measured, reference, must, reached in _rows(results, parts):
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


def _rows(results: dict[str, Any], parts: list[str]) -> list[Row]:
    rows: list[Row] = []
    if "dispatch" in parts:
        d = results["dispatch"]
        rows.append(
            ("dispatch_vs_bare", f"{d['ratio']:.2f} ({d['per_second']:,.0f}/s, settled and journalled)",
             f"bare aiohttp {d['bare_per_second']:,.0f}/s; receiver: {d['receiver']}", "≥ 0.50", d["ratio"] >= 0.5)
        )  # fmt: skip
        rows.append(
            ("CPU per 1,000 deliveries", f"{d['cpu_s_per_1000']:.3f} s, RSS {d['worker_rss_mib']:.0f} MiB",
             f"bare aiohttp {d['bare_cpu_s_per_1000']:.3f} s", "reported", True)
        )  # fmt: skip
    if "pace" in parts:
        rows += [_pace_row(p) for p in results["pace"]]
    if "load" in parts:
        o = results["load"]
        rows.append(
            ("load_rows_per_s", f"{o['rows_per_second']:,.0f}/s for {o['rows']:,} rows, ratio {o['ratio']:.2f}",
             f"plain COPY out and in {o['copy_rows_per_second']:,.0f}/s", "≥ 0.10", o["ratio"] >= 0.10)
        )  # fmt: skip
        rows.append(
            (
                "loader's peak RSS",
                f"{o['loader_peak_rss_mib']:.0f} MiB",
                "",
                "≤ 300 MiB",
                o["loader_peak_rss_mib"] <= 300,
            )
        )
        rows.append(
            ("Redis during the feed", f"{o['redis_peak_mib']:.0f} MiB, {o['redis_most_entries']:,} entries in a lane",
             "high-water mark 50,000", "bounded", o["redis_most_entries"] <= 50_000)
        )  # fmt: skip
    if "reconcile" in parts:
        r = results["reconcile"]
        rows.append(
            ("reconcile_seconds", f"{r['seconds']:.1f} s for {r['items']:,} items, ratio {r['ratio']:.1f}",
             f"plain COPY of the items {r['copy_seconds']:.1f} s", "≤ 25", r["ratio"] <= 25)
        )  # fmt: skip
        rows.append(
            (
                "reconcile's peak RSS",
                f"{r['peak_rss_mib']:.0f} MiB",
                "",
                "≤ 600 MiB",
                r["peak_rss_mib"] <= 600,
            )
        )
    return rows


def _pace_row(p: dict[str, Any]) -> Row:
    stall = f"its worst stall {p['receiver_worst_stall_ms']:.0f} ms"
    return (
        f"pace Q = {p['qps']}, {p['workers']} workers",
        f"most in a second {p['worker_max_per_second']}, used {p['used']:.4f}",
        f"at the receiver {p['receiver_max_per_second']} ({stall})",
        f"≤ {p['qps']}, ≥ 0.98 used",
        p["worker_over_qps"] <= 1 and p["used"] >= 0.98,
    )


if __name__ == "__main__":
    sys.exit(main())
