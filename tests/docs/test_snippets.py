"""What docs/sending.md shows to senders works as it stands there."""

from __future__ import annotations

import asyncio
import os
import re
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from shutil import which

import psycopg
import pytest

from pipelines.live_source import LiveSource
from tests.door import door

PAGE = Path(__file__).parents[2] / "docs" / "sending.md"
SECRETS = {
    "shop's own": b"a secret with spaces & $igns",
    "keygen's": b"whsec_AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=",
}
NEEDED = {"python": (), "sh": ("sh", "openssl", "curl", "od"), "js": ("node",)}

Senders = tuple[str, bytes]


def snippets(language: str) -> list[str]:
    """The page's blocks of one language, in order."""
    return re.findall(
        rf"^```{language}\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
    )


@pytest.fixture(params=SECRETS.values(), ids=SECRETS)
async def shop(
    request: pytest.FixtureRequest, database_url: str, redis_url: str, key_prefix: str, tmp_path: Path
) -> AsyncIterator[Senders]:
    """Madeira's address, and the secret that the source `shop` has there."""
    secret: bytes = request.param
    source = LiveSource("shop", keys=(secret,))
    stores = {"database_url": database_url, "redis_url": redis_url, "key_prefix": key_prefix}
    async with door(source, folder=tmp_path / "metrics", **stores) as url:
        yield url, secret


async def run(language: str, snippet: str, folder: Path, *, url: str, secret: bytes) -> tuple[int, str]:
    """Exit code and output of a snippet that is run as a file of its language."""
    missing = [program for program in NEEDED[language] if which(program) is None]
    if missing:
        pytest.skip(f"no {' and no '.join(missing)} here")
    file = folder / {"python": "send.py", "sh": "send.sh", "js": "send.mjs"}[language]
    file.write_text(snippet, encoding="utf-8")
    program = {"python": sys.executable, "sh": "sh", "js": "node"}[language]
    process = await asyncio.create_subprocess_exec(
        program, file, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
        env={"PATH": os.environ["PATH"], "URL": url, "SHOP_KEY": secret.decode(), "no_proxy": "*"},
    )  # fmt: skip
    output, _ = await process.communicate()
    return process.returncode or 0, output.decode()


@pytest.mark.parametrize("language", NEEDED)
async def test_a_snippet_sends_an_event(
    shop: Senders, language: str, tmp_path: Path, database_url: str
) -> None:
    """It is accepted and on record, under both kinds of secret; a second run is a duplicate; another secret is
    refused and the program says so by its exit code."""
    url, secret = shop
    snippet = snippets(language)[0]
    code, first = await run(language, snippet, tmp_path, url=url, secret=secret)
    assert (code, "202" in first, '"accepted"' in first) == (0, True, True), first
    code, second = await run(language, snippet, tmp_path, url=url, secret=secret)
    assert (code, '"duplicate"' in second) == (0, True), second
    code, refused = await run(language, snippet, tmp_path, url=url, secret=b"another")
    assert code != 0
    assert "401" in refused
    (event_id,) = set(re.findall(r"order-\d+", snippet))
    with psycopg.connect(database_url) as record:
        rows = record.execute("SELECT source, event_id, event_type, routing_key FROM event").fetchall()
    assert rows == [("shop", event_id, "payment.created", "AB")]


async def test_the_page_can_ask_where_an_event_is(shop: Senders, tmp_path: Path) -> None:
    """The snippet that asks gets an answer about the event that the first one sent."""
    url, secret = shop
    send, ask = snippets("python")
    await run("python", send, tmp_path, url=url, secret=secret)
    code, output = await run("python", ask, tmp_path, url=url, secret=secret)
    assert (code, "order-1001" in output, "waiting" in output) == (0, True, True), output


def test_every_snippet_is_run() -> None:
    """No block of the page is one that no test runs."""
    fences = re.findall(r"^```(\w+)$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert sorted(fences) == ["js", "python", "python", "sh"]
