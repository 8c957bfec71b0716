"""placeholder while the demo is written"""
from pathlib import Path


def run_demo(*, as_json: bool, keep: bool, folder: Path | None) -> int: return 1
