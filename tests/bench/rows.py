"""The bench's results as rows of its table: each figure beside its reference and what it must reach."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Row = tuple[str, str, str, str, bool]
"""Figure, measured, reference in the same run, must reach, reached."""

_LEAST_INGEST = {"redis": 0.70, "postgres": 0.45}


def rows_of(results: dict[str, Any], parts: list[str]) -> list[Row]:
    """The rows for these parts."""
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
    for part, show in _LIVE_LANE.items():
        if part in parts:
            rows += show(results[part])
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


def _ingest(durabilities: list[dict[str, Any]]) -> list[Row]:
    rows: list[Row] = []
    for i in durabilities:
        least = _LEAST_INGEST[i["durability"]]
        rows += [
            (f"ingest_vs_bare, {i['durability']}",
             f"{i['ratio']:.2f} ({i['per_second']:,.0f}/s; p50 {i['p50_ms']:.1f}, p99 {i['p99_ms']:.1f} ms)",
             f"bare handler {i['bare_per_second']:,.0f}/s; p50 {i['bare_p50_ms']:.1f}, p99 {i['bare_p99_ms']:.1f} ms",
             f"≥ {least:.2f}", i["ratio"] >= least),
            (f"the same beside a worker, {i['durability']}", f"{i['with_worker_per_second']:,.0f}/s", "",
             "reported", True),
            (f"CPU per 1,000 posts, {i['durability']}", f"{i['cpu_s_per_1000']:.3f} s",
             f"bare handler {i['bare_cpu_s_per_1000']:.3f} s", "reported", True),
        ]  # fmt: skip
    return rows


def _bulk(b: dict[str, Any]) -> list[Row]:
    return [
        ("bulk_events_per_s, redis", f"{b['redis_per_second']:,.0f}/s, ratio {b['ratio']:.2f}",
         f"redis-py's pipelined XADD {b['xadd_per_second']:,.0f}/s", "≥ 0.35", b["ratio"] >= 0.35),
        ("bulk_events_per_s, postgres", f"{b['postgres_per_second']:,.0f}/s", "", "reported", True),
    ]  # fmt: skip


def _live(v: dict[str, Any]) -> list[Row]:
    stall = f"its worst stall {v['receiver_worst_stall_ms']:.0f} ms"
    return [
        (f"live beside a batch, Q = {v['qps']}",
         f"accepted→sent p50 {v['live_p50_ms']:.0f}, p99 {v['live_p99_ms']:.0f} ms",
         f"{v['live']:,} live events in {v['seconds']} s; most {v['live_max_ms']:.0f} ms", "p99 ≤ 150 ms",
         v["live_p99_ms"] <= 150),
        ("both lanes together", f"most in a second {v['max_per_second']}, used {v['used']:.4f}",
         f"at the receiver {v['receiver_max_per_second']} ({stall}); batch's share {v['batch_share']:.2f}",
         f"≤ {v['qps']}, ≥ 0.98 used",
         v["max_per_second"] <= v["qps"] and v["receiver_max_per_second"] <= v["qps"] and v["used"] >= 0.98),
    ]  # fmt: skip


def _isolation(o: dict[str, Any]) -> list[Row]:
    return [
        ("live p99 beside a silent partner", f"{o['beside_p99_ms']:.0f} ms (median of {o['runs']})",
         f"without it {o['alone_p99_ms']:.0f} ms; {o['timed_out']:,} sends timed out", f"≤ {o['limit_ms']:.0f} ms",
         o["beside_p99_ms"] <= o["limit_ms"])
    ]  # fmt: skip


def _same_id(durabilities: list[dict[str, Any]]) -> list[Row]:
    return [
        (f"200 posts of one id, {s['durability']}",
         ", ".join(f"{count} {word.removeprefix('202 ')}" for word, count in sorted(s["answers"].items())),
         f"arrived {s['arrived']}", "1 accepted, 1 arrived", s["exact"])
        for s in durabilities
    ]  # fmt: skip


def _codecs(codecs: list[dict[str, Any]]) -> list[Row]:
    return [
        (f"{c['codec']}, {c['envelopes']}",
         f"{c['bytes_each']:.0f} B, encode {c['encode_us']:.2f}, decode {c['decode_us']:.2f} µs",
         f"payload {c['payload_bytes_each']:.0f} B", "reported", True)
        for c in codecs
    ]  # fmt: skip


_LIVE_LANE: dict[str, Callable[[Any], list[Row]]] = {
    "ingest": _ingest,
    "bulk": _bulk,
    "live": _live,
    "isolation": _isolation,
    "same_id": _same_id,
    "codecs": _codecs,
}
