"""`madeira send` against a real door, and `madeira keygen`: what they print and their exit codes."""

from __future__ import annotations

import asyncio
import json
import logging
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import closing
from pathlib import Path
from threading import Thread

import psycopg
import pytest
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st

from madeira.cli import main
from madeira.embedded_server import free_port
from madeira.send import Event, body_of, check_payload, check_url
from pipelines.live_source import LiveSource
from sinks.signature import key_bytes
from tests.door import door

JOBS = """
[sources.shop]
key_env = "SHOP_KEY"
[sources.till]
key_env = "TILL_KEY"
"""
SECRET = "whsec_AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8="

Send = Callable[..., Awaitable[Result]]


@pytest.fixture(autouse=True)
def own_logging() -> Iterator[None]:
    """What a command sets up for its process ends with the test."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """A jobs.toml with two sources."""
    path = tmp_path / "jobs.toml"
    path.write_text(JOBS)
    return path


def called(config: Path, *arguments: str, stdin: bytes = b"", **environ: str) -> Result:
    """`madeira` with these arguments, in which only `shop` has a key."""
    nothing = dict.fromkeys(("MADEIRA_DATABASE_URL", "MADEIRA_REDIS_URL", "MADEIRA_LOG", "TILL_KEY"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MADEIRA_CONFIG", str(config))
        env = {**nothing, "SHOP_KEY": SECRET, **environ}
        return CliRunner().invoke(main, ["--config", str(config), *arguments], env=env, input=stdin)


@pytest.fixture
async def post(
    database_url: str, redis_url: str, key_prefix: str, tmp_path: Path, config: Path
) -> AsyncIterator[Send]:
    """`madeira send --source shop --type payment.created …` to a door that knows the key."""
    source = LiveSource("shop", keys=(SECRET.encode(),), max_body=4_096)
    stores = {"database_url": database_url, "redis_url": redis_url, "key_prefix": key_prefix}
    async with door(source, folder=tmp_path / "metrics", **stores) as url:

        async def send(*arguments: str, stdin: bytes = b"", **environ: str) -> Result:
            words = ("send", "--source", "shop", "--type", "payment.created", "--url", url, *arguments)
            return await asyncio.to_thread(called, config, *words, stdin=stdin, **environ)

        yield send


async def test_an_event_is_accepted_then_known(post: Send, database_url: str) -> None:
    """Everything that is given is on record; the answer names event, trace and the next command; a second time it is
    known already."""
    arguments = (
        *("--id", "o-1", "--routing-key", "AB", "--tag", "region=sh", "--tag", "env=test"),
        *("--amount", "12.50", "--currency", "EUR", "--payload", '{ "amount": 12.50 }'),
    )
    first, second = await post(*arguments), await post(*arguments)
    assert (first.exit_code, second.exit_code) == (0, 0), first.output + second.output
    with psycopg.connect(database_url) as record:
        query = "SELECT event_id, event_type, routing_key, tags, amount_minor, currency, body, trace_id FROM event"
        (row,) = record.execute(query).fetchall()
    assert row[:-2] == ("o-1", "payment.created", "AB", {"region": "sh", "env": "test"}, 1250, "EUR")
    assert bytes(row[-2]) == b'{ "amount": 12.50 }'
    assert first.output.splitlines() == [
        f"accepted: event o-1, trace {row[-1]}",
        "follow it: madeira trace shop:o-1",
    ]
    assert "known already" in second.output
    assert str(row[-1]) in second.output


async def test_an_id_is_made_up(post: Send) -> None:
    """Without an id each event has one of its own, and --json tells it."""
    answers = [json.loads((await post("--json")).output) for _ in range(2)]
    assert [answer["status"] for answer in answers] == ["accepted", "accepted"]
    assert answers[0]["event_id"] != answers[1]["event_id"]


async def test_a_payload_from_a_file_and_from_standard_input(
    post: Send, tmp_path: Path, database_url: str
) -> None:
    """Both are read as they are, byte by byte."""
    file = tmp_path / "payload.json"
    file.write_bytes('{"t":\t"žluť"}'.encode())
    assert (await post("--id", "a", "--payload", f"@{file}")).exit_code == 0
    assert (await post("--id", "b", "--payload", "-", stdin=b"[1,  2.00]")).exit_code == 0
    with psycopg.connect(database_url) as record:
        rows = record.execute("SELECT body FROM event ORDER BY event_id").fetchall()
    assert [bytes(body) for (body,) in rows] == ['{"t":\t"žluť"}'.encode(), b"[1,  2.00]"]


async def test_each_mistake_is_printed(post: Send) -> None:
    """A refused event is exit 1, and every mistake that the door names is a line with its path."""
    refused = await post("--id", "no spaces", "--amount", "12.345", "--currency", "EUR")
    assert refused.exit_code == 1
    assert "refused (400)" in refused.output
    assert {"$.event_id", "$.amount"} <= {line.strip().split(":")[0] for line in refused.output.splitlines()}
    as_json = json.loads((await post("--id", "no spaces", "--json")).output)
    assert (as_json["code"], as_json["status"]) == (400, "refused")
    assert [mistake["path"] for mistake in as_json["errors"]] == ["$.event_id"]


async def test_other_refusals(post: Send) -> None:
    """Another body under the same id, too large a body, a wrong key: exit 1 and the status."""
    assert (await post("--id", "x")).exit_code == 0
    for status, arguments, environ in [
        (409, ("--id", "x", "--payload", "[1]"), {}),
        (413, ("--payload", json.dumps("x" * 5_000)), {}),
        (401, ("--id", "x"), {"SHOP_KEY": "wrong-key"}),
    ]:
        refused = await post(*arguments, **environ)
        assert (refused.exit_code, f"refused ({status})" in refused.output) == (1, True), refused.output
        assert "wrong-key" not in refused.output


def test_nobody_there_is_exit_3(config: Path) -> None:
    """Where nobody listens a sentence says so, in words or as JSON."""
    arguments = ("send", "--source", "shop", "--type", "a", "--url", f"http://127.0.0.1:{free_port()}")
    result = called(config, *arguments)
    assert (result.exit_code, "is madeira serve running there?" in result.output) == (3, True), result.output
    result = called(config, *arguments, "--json")
    assert (result.exit_code, json.loads(result.output)["status"]) == (3, "no answer")


def test_without_a_url_it_posts_to_this_hosts_serve(config: Path) -> None:
    """That is where `MADEIRA_LISTEN` says."""
    port = free_port()
    result = called(config, "send", "--source", "shop", "--type", "a", MADEIRA_LISTEN=f"127.0.0.1:{port}")
    assert (result.exit_code, f"nobody listens at http://127.0.0.1:{port} " in result.output) == (3, True)


def test_an_answer_that_is_lost_says_how_to_go_on(config: Path) -> None:
    """A server that hangs up after the request may have accepted it: the same id has to be used again."""
    with closing(socket.create_server(("127.0.0.1", 0))) as server:

        def hang_up() -> None:
            connection, _ = server.accept()
            connection.recv(1 << 16)
            connection.close()

        thread = Thread(target=hang_up)
        thread.start()
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
        result = called(config, "send", "--source", "shop", "--type", "a", "--id", "o-7", "--url", url)
        thread.join()
    assert result.exit_code == 3
    assert "--id o-7" in result.output


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--source", "shopp"), "did you mean shop"),
        (("--source", "till"), "TILL_KEY is not set"),
        (("--source", "shop", "--amount", "1"), "--amount and --currency together"),
        (("--source", "shop", "--payload", "{'a': 1}"), "must be JSON"),
        (("--source", "shop", "--payload", "NaN"), "must be JSON"),
        (("--source", "shop", "--payload", "@nowhere.json"), "nowhere.json cannot be read"),
        (("--source", "shop", "--tag", "region"), "NAME=VALUE"),
        (("--source", "shop", "--url", "127.0.0.1:8700"), "http:// or https://"),
    ],
)
def test_what_cannot_be_meant_is_exit_2(config: Path, arguments: tuple[str, ...], words: str) -> None:
    """A source without a key, half an amount, a payload that is no JSON: exit 2 before anything is sent."""
    result = called(config, "send", "--type", "a", *arguments)
    assert (result.exit_code, words in result.output) == (2, True), result.output
    assert SECRET not in result.output


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(json_values, st.text(), st.dictionaries(st.text(), st.text()))
def test_the_payload_stands_in_the_body_as_it_is(
    value: object, routing_key: str, tags: dict[str, str]
) -> None:
    """Whatever stands around it, the payload's bytes are the end of the body, and the whole is JSON."""
    payload = json.dumps(value, indent=1).encode()
    check_payload(payload)
    event = Event("o-1", "a", payload, routing_key=routing_key, tags=tags, amount="1.0", currency="EUR")
    body = body_of(event, "shop")
    assert body.endswith(b'"payload":' + payload + b"}")
    read = json.loads(body)
    assert (read["payload"], read.get("routing_key", ""), read.get("tags", {})) == (value, routing_key, tags)
    assert body == body_of(event, "shop")


@pytest.mark.parametrize(
    "url", ["", "ftp://h", "http://", "http://h:x", "http://u@h", "http://h/?q", "http://h h"]
)
def test_what_is_no_address(url: str) -> None:
    """Only an http or https address without user, query and fragment is one to post to."""
    with pytest.raises(ValueError):
        check_url(url)


def test_keygen_makes_another_secret_each_time(config: Path) -> None:
    """32 bytes behind whsec_, never the same, in words and as JSON, and both schemes can use it."""
    words = called(config, "keygen").output.strip()
    as_json = json.loads(called(config, "keygen", "--json").output)["secret"]
    assert words != as_json
    for secret in (words, as_json):
        assert secret.startswith("whsec_")
        assert len(key_bytes(secret.encode())) == 32
