"""Log lines: facts as JSON, each once a second."""

from __future__ import annotations

import ast
import io
import json
import logging
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from madeira.logs import Line, OncePerSecond, set_up


class Clock:
    """Seconds, as the test says."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        """Now."""
        return self.now


@pytest.fixture
def clock() -> Clock:
    """The clock of the filter."""
    return Clock()


@pytest.fixture
def out() -> io.StringIO:
    """Where the lines go."""
    return io.StringIO()


@pytest.fixture
def log(clock: Clock, out: io.StringIO) -> Iterator[logging.Logger]:
    """A logger as `set_up` makes it, with a clock of ours."""
    handler = logging.StreamHandler(out)
    handler.setFormatter(Line())
    handler.addFilter(OncePerSecond(clock))
    logger = logging.getLogger("tests.logs")
    logger.setLevel(logging.INFO)
    logger.addHandler(handler)
    logger.propagate = False
    yield logger
    logger.removeHandler(handler)
    logger.propagate = True


def lines(out: io.StringIO) -> list[dict[str, object]]:
    """Each line, parsed."""
    return [json.loads(line) for line in out.getvalue().splitlines()]


def test_a_line_is_one_object(log: logging.Logger, out: io.StringIO) -> None:
    """Event, level, time in UTC, where it was said, and the fields beside them, whatever is in them."""
    log.warning(
        "sent", extra={"fields": {"trace_id": "4bf9", "text": 'a "quote"\nand a line', "at_once": {1}}}
    )
    (line,) = lines(out)
    at = datetime.fromisoformat(str(line.pop("at")))
    assert at.tzinfo == UTC
    assert line == {
        "level": "warning",
        "event": "sent",
        "in": "tests.logs",
        "trace_id": "4bf9",
        "text": 'a "quote"\nand a line',
        "at_once": [1],
    }


def test_what_json_lacks_becomes_text(log: logging.Logger, out: io.StringIO) -> None:
    """A field of an unforeseen type does not lose the line."""
    log.info("odd", extra={"fields": {"error": ValueError("x"), "number": 1.5}})
    assert lines(out)[0]["error"] == "x"


def test_an_exception_keeps_its_trace(log: logging.Logger, out: io.StringIO) -> None:
    """In the same line, so that one event stays one line."""
    try:
        raise ValueError("a fault")
    except ValueError:
        log.exception("broken")
    (line,) = lines(out)
    assert "ValueError: a fault" in str(line["trace"])


def test_once_a_second(log: logging.Logger, out: io.StringIO, clock: Clock) -> None:
    """The same line again within a second is left out and counted in the next one."""
    for step in (0.0, 0.4, 0.4, 0.3):
        clock.now += step
        log.info("feed_refused", extra={"fields": {"partner": "AB"}})
    assert [line.get("left_out") for line in lines(out)] == [None, 2]
    clock.now += 1.0
    log.info("feed_refused", extra={"fields": {"partner": "AB"}})
    assert lines(out)[-1].get("left_out") is None


def test_different_lines_do_not_hide_each_other(log: logging.Logger, out: io.StringIO) -> None:
    """Another event, partner, service or level is another line."""
    log.info("store_away", extra={"fields": {"service": "record"}})
    log.info("store_away", extra={"fields": {"service": "feed"}})
    log.warning("store_away", extra={"fields": {"service": "feed"}})
    log.info("store_back", extra={"fields": {"service": "feed"}})
    log.info("store_back", extra={"fields": {"partner": "AB"}})
    log.info("store_back", extra={"fields": {"partner": "AB"}})
    assert len(lines(out)) == 5


def test_many_different_lines_take_no_memory(clock: Clock) -> None:
    """The filter remembers a bounded number of lines."""
    once = OncePerSecond(clock)
    for number in range(5_000):
        once.filter(logging.LogRecord("l", logging.INFO, "f", 1, f"event {number}", None, None))
    assert len(once._seen) <= 1_001


def test_set_up_speaks_on_stderr(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Standard output stays free for what commands print; libraries speak only from WARNING on."""
    root = logging.getLogger()
    before, level = root.handlers[:], root.level
    err = io.StringIO()
    monkeypatch.setattr(sys, "stderr", err)
    try:
        root.handlers = []
        set_up("INFO")
        logging.getLogger("pipelines.x").info("said")
        logging.getLogger("alembic").info("not said")
    finally:
        root.handlers, root.level = before, level
    assert [json.loads(line)["event"] for line in err.getvalue().splitlines()] == ["said"]
    assert capsys.readouterr().out == ""


def test_facts_of_a_line_are_in_its_fields() -> None:
    """What a call gives beside `fields` would be in no line."""
    root = Path(__file__).parents[2]
    wrong = []
    for package in ("madeira", "scheduler", "pipelines", "sinks", "streams"):
        for path in (root / package).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.keyword) and node.arg == "extra" and isinstance(node.value, ast.Dict):
                    keys = [key.value for key in node.value.keys if isinstance(key, ast.Constant)]
                    wrong += [f"{path.relative_to(root)}:{node.lineno}"] if keys != ["fields"] else []
    assert wrong == []


def test_no_fact_takes_the_place_of_the_time_or_the_event() -> None:
    """`at`, `level`, `event` and `in` are the line's own: a field of that name would be written over it."""
    root = Path(__file__).parents[2]
    wrong = []
    for package in ("madeira", "scheduler", "pipelines", "sinks", "streams"):
        for path in (root / package).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                found = _fields(node)
                keys = {key.value for key in found.keys if isinstance(key, ast.Constant)} if found else set()
                if keys & {"at", "level", "event", "in"}:
                    wrong.append(f"{path.relative_to(root)}:{node.lineno}")  # type: ignore[attr-defined]
    assert wrong == []


def _fields(node: ast.AST) -> ast.Dict | None:
    """The facts, where a call gives them or where they are put together before it."""
    match node:
        case ast.Dict(keys=[ast.Constant(value="fields")], values=[ast.Dict() as found]):
            return found
        case ast.Assign(targets=[ast.Name(id="fields")], value=ast.Dict() as found):
            return found
        case _:
            return None
