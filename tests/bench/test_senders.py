"""The bench's senders say truly what came back: a bench that miscounts would be worse than none."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.bench.senders import event, request
from tests.bench.site import ROOT, end, wait_until


@pytest.fixture(scope="module")
def port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """Where the bare handler listens."""
    port_file: Path = tmp_path_factory.mktemp("bench") / "port"
    process = subprocess.Popen([sys.executable, "-m", "tests.bench.bare_web", str(port_file)], cwd=ROOT)
    try:
        wait_until(port_file.exists, seconds=60)
        yield int(port_file.read_text())
    finally:
        end(process)


def sent(port: int, *arguments: str) -> dict[str, object]:
    """What the senders print."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.bench.senders", "--port", str(port), "--source", "shop", *arguments],
        cwd=ROOT, capture_output=True, check=True, timeout=120,
    )  # fmt: skip
    found: dict[str, object] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("pace", [(), ("--per-second", "2000")])
def test_every_post_is_signed_and_its_answer_counted(port: int, pace: tuple[str, ...]) -> None:
    """The bare handler checks the HMAC of each: all are accepted, none is counted twice."""
    assert sent(port, "--count", "300", "--connections", "7", *pace)["answers"] == {"202 accepted": 300}


def test_a_refusal_is_counted_by_its_status(port: int) -> None:
    """A path that is not there: nothing accepted, each post under its status."""
    assert sent(port, "--count", "5", "--lines", "2")["answers"] == {"404": 5}


def test_an_event_is_json_of_the_size_that_was_meant() -> None:
    """Every event has 500 bytes, whatever its id."""
    for event_id in ("e-1", "a-longer-prefix-1234567"):
        body = event(event_id, routing_key="P")
        assert len(body) == 500
        assert json.loads(body)["event_id"] == event_id


def test_a_request_says_how_long_it_is() -> None:
    """Content-Length is the body's; what follows the blank line is the body itself."""
    head, _, body = request(b"{}\n{}", source="shop", lines=2).partition(b"\r\n\r\n")
    assert body == b"{}\n{}"
    assert b"Content-Length: 5" in head
