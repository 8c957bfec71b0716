"""What should never be sent: each gets a clear 4xx, or works and its bytes stay as they are; nothing is a 500."""

from __future__ import annotations

import asyncio
import gzip
import time
from collections.abc import AsyncIterator, Iterator
from datetime import timedelta

import pytest

from tests.madeira.desk import KEY, SHOP, Desk, desk, event, hear, raw, signed

BODY = event("1")
LENGTH = ("Content-Length", str(len(BODY)))


@pytest.fixture
async def api(database_url: str, redis_url: str, key_prefix: str) -> AsyncIterator[Desk]:
    """The API with both stores; whatever was sent, it still works afterwards and has logged no fault of its own."""
    async with desk(database_url, redis_url, key_prefix) as found:
        yield found
        assert (await found.post(event("afterwards"))).status == 202


@pytest.fixture(autouse=True)
def no_fault(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """No request is an error of ours."""
    yield
    assert [record.getMessage() for record in caplog.records if record.levelname == "ERROR"] == []


@pytest.mark.parametrize("name", ["Madeira-Source", "Madeira-Timestamp", "Madeira-Signature"])
async def test_a_header_that_is_missing_is_named(api: Desk, name: str) -> None:
    """401 that says which."""
    headers = [header for header in signed(BODY) if header[0] != name]
    reply = await api.say(raw("POST", "/v1/events", [*headers, LENGTH], BODY))
    assert (reply.status, reply.problem()) == (401, "signature")
    assert name in str(reply.json()["detail"])


@pytest.mark.parametrize("name", ["Madeira-Source", "Madeira-Timestamp", "Madeira-Signature"])
async def test_a_header_that_stands_twice_is_named(api: Desk, name: str) -> None:
    """400, also where both are the same, and in any case of letters: nobody guesses which one was meant."""
    headers = [*signed(BODY), *((n.lower(), v) for n, v in signed(BODY) if n == name)]
    reply = await api.say(raw("POST", "/v1/events", [*headers, LENGTH], BODY))
    assert (reply.status, reply.problem()) == (400, "headers")
    assert name in str(reply.json()["detail"])


@pytest.mark.parametrize(
    "signature",
    [
        "",
        "0" * 64,
        "zz",
        ",",
        ", , ,",
        "sha256=" + signed(BODY)[2][1],
        signed(BODY)[2][1][:-1],
        "é" * 32,
        "\udcff" * 64,
        "a," * 3000,
        KEY.decode(),
    ],
)
async def test_a_signature_that_is_none(api: Desk, signature: str) -> None:
    """401 whatever stands there, and nothing of it comes back."""
    headers = [*signed(BODY)[:2], ("Madeira-Signature", signature), LENGTH]
    reply = await api.say(raw("POST", "/v1/events", headers, BODY))
    assert (reply.status, reply.problem()) == (401, "signature")
    assert KEY not in reply.body


async def test_a_signature_in_capitals_works(api: Desk) -> None:
    """Hex digits have no case, and header names neither."""
    headers = [(name.upper(), value.upper() if len(value) == 64 else value) for name, value in signed(BODY)]
    assert (await api.say(raw("POST", "/v1/events", [*headers, LENGTH], BODY))).status == 202


@pytest.mark.parametrize(
    ("timestamp", "word"),
    [
        (str(int(time.time()) + 100_000), "ahead of"),
        (str(int(time.time()) - 100_000), "behind"),
        ("0", "behind"),
        (str(int(time.time() * 1000)), "milliseconds"),
        (f"{time.time():.3f}", "whole seconds"),
        ("now", "whole seconds"),
        ("-1", "whole seconds"),
        ("1e9", "whole seconds"),
        ("", "whole seconds"),
        ("٣" * 10, "whole seconds"),
        ("9" * 5000, "whole seconds"),
    ],
)
async def test_a_timestamp_that_is_not_of_now(api: Desk, timestamp: str, word: str) -> None:
    """401 that says what is wrong with it."""
    headers = [("Madeira-Source", "shop"), ("Madeira-Timestamp", timestamp), ("Madeira-Signature", "0" * 64)]
    reply = await api.say(raw("POST", "/v1/events", [*headers, LENGTH], BODY))
    assert (reply.status, reply.problem()) == (401, "signature")
    assert word in str(reply.json()["detail"])


def with_payload(payload: bytes) -> bytes:
    """An event around these bytes."""
    return b'{"event_id":"1","event_type":"t","payload":' + payload + b"}"


@pytest.mark.parametrize(
    "payload",
    [
        b"9007199254740993",
        b"1" * 30,
        b"0." + b"1" * 300,
        b"-0.0",
        b"1e999",
        b"1.10",
        b'{"a":1,"a":2}',
        b'{"event_id":"2","event_id":3,"payload":4}',
        b'"\\ud83d\\ude00\xf0\x9f\x98\x80\\u0000\\/"',
        b'{ "z" : 1 ,\n\t"a":[ ] }',
        b"null",
        b"[" * 500 + b"]" * 500,
    ],
)
async def test_a_payload_is_left_as_it_stands(api: Desk, payload: bytes) -> None:
    """Big numbers, doubled keys, escapes, white space, depth: the bytes come out as they went in."""
    assert (await api.post(with_payload(payload))).status == 202
    [entry] = await api.entries()
    assert entry.payload == payload
    assert await api.sql("SELECT body FROM event") == [(payload,)]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"", "is empty"),
        (b" \n", "is empty"),
        (b"{", "is not JSON"),
        (b"[]", "must be a JSON object, is a list"),
        (b"null", "must be a JSON object, is null"),
        (b'"text"', "must be a JSON object"),
        (BODY + BODY, "is not JSON: Extra data"),
        (b"\xef\xbb\xbf" + BODY, "is not JSON"),
        (BODY.decode().encode("utf-16"), "is not UTF-8"),
        (with_payload(b'"\xff"'), "is not UTF-8 at byte"),
        (with_payload(b'{"\xc3\x28":1}'), "is not UTF-8 at byte"),
        (with_payload(b'"\xed\xa0\x80"'), "is not UTF-8 at byte"),  # a surrogate as UTF-8
        (with_payload(b"NaN"), "NaN is no JSON number"),
        (with_payload(b"[-Infinity]"), "-Infinity is no JSON number"),
        (with_payload(b"01"), "is not JSON"),
        (with_payload(b'"\x00"'), "is not JSON"),
        (with_payload(b'"\\ud800"'), "is not Unicode"),
        (with_payload(b"[" * 10_000 + b"]" * 10_000), "is nested too deeply"),
        (with_payload(b'{"a":' * 10_000 + b"1" + b"}" * 10_000), "is nested too deeply"),
        (with_payload(b"[" * 10_000), "is nested too deeply"),
    ],
    ids=range(20),
)
async def test_a_body_that_is_no_json_object(api: Desk, body: bytes, message: str) -> None:
    """400 that says what it is instead, or where it breaks."""
    reply = await api.post(body, source="quick")
    assert (reply.status, reply.problem(), reply.paths()) == (400, "format", ["$"])
    assert message in str(reply.json()["detail"])


@pytest.mark.parametrize(
    "body",
    [
        b'{"event_id":"1","event_id":"2","event_type":"t","payload":1}',
        b'{"event_id":"1","event\\u005fid":"1","event_type":"t","payload":1}',
        b'{"event_id":"1","event_type":"t","payload":1,"event_id":"1"}',
    ],
)
async def test_a_key_that_stands_twice(api: Desk, body: bytes) -> None:
    """400: what one reader takes for the id another would not."""
    reply = await api.post(body)
    assert (reply.status, reply.paths()) == (400, ["$.event_id"])
    assert "more than once" in str(reply.json()["detail"])


@pytest.mark.parametrize(
    "event_id", ["", " ", "a b", "a\x00", "\U0001f600", "x" * 4096, "a/b", "a\n", "é", "a" * 129]
)
async def test_an_id_that_is_none(api: Desk, event_id: str) -> None:
    """400 with the place."""
    reply = await api.post(event(event_id), source="quick")
    assert (reply.status, reply.paths()) == (400, ["$.event_id"])
    assert len(reply.body) < 1000


async def test_every_mistake_is_named(api: Desk) -> None:
    """All at once, each with its JSON path; a wrong key with the nearest right one."""
    body = (
        b'{"event_id":7,"evnt_type":"t","payload":1,"payload_base64":"?","tags":{"a":1,"":"x"},"amount":"1,5",'
        b'"currency":"EURO","business_date":"31.3.2026","target_uri":"ftp://x","trace_id":"0","routing_key":null,'
        b'"order_key":"","content_type":"json","source":"quick"}'
    )
    reply = await api.post(body)
    assert reply.status == 400
    assert set(reply.paths()) == {
        *(
            "$.event_id",
            "$.evnt_type",
            "$.event_type",
            "$.payload_base64",
            "$.tags.a",
            '$.tags[""]',
            "$.amount",
        ),
        *("$.currency", "$.business_date", "$.target_uri", "$.trace_id", "$.routing_key", "$.order_key"),
        *("$.content_type", "$.source"),
    }
    assert b"did you mean event_type?" in reply.body


async def test_mistakes_without_end_are_cut(api: Desk) -> None:
    """An answer is never of the size of a body that is all mistakes."""
    body = b"{" + b",".join(b'"k%d":1' % n for n in range(5000)) + b"}"
    reply = await api.post(body, source="quick")
    assert reply.status == 400
    assert len(reply.paths()) == 50


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "br", "zstd", "gzip, gzip"])
async def test_a_packed_body_is_not_unpacked(api: Desk, encoding: str) -> None:
    """415: what is signed is what is sent, and a small body that unpacks to gigabytes is no way in."""
    body = gzip.compress(BODY)
    reply = await api.post(body, ("Content-Encoding", encoding))
    assert (reply.status, reply.problem()) == (415, "content")


@pytest.mark.parametrize(
    "content_type", ["text/plain", "application/x-www-form-urlencoded", "application/x-ndjson", "", "json"]
)
async def test_a_content_type_that_is_not_json(api: Desk, content_type: str) -> None:
    """415, and the type that is right."""
    reply = await api.post(BODY, content_type=content_type)
    assert (reply.status, reply.problem()) == (415, "content")
    assert "application/json" in str(reply.json()["detail"])


async def test_a_charset_beside_the_type_is_fine(api: Desk) -> None:
    """Parameters and case of a media type change nothing."""
    assert (await api.post(BODY, content_type="Application/JSON; charset=utf-8")).status == 202


async def test_ten_megabytes_announced_are_refused_unread(api: Desk) -> None:
    """413 before the first byte of the body, also for who waits to be asked for it."""
    headers = [*signed(b""), ("Content-Length", str(10 << 20)), ("Expect", "100-continue")]
    reply = await api.say(raw("POST", "/v1/events", headers))
    assert (reply.status, reply.problem(), reply.headers["connection"]) == (413, "size", "close")


async def test_ten_megabytes_unannounced_are_refused_on_the_way(api: Desk) -> None:
    """413 as soon as more has come than anybody may send; what follows is not kept."""
    reader, writer = await asyncio.open_connection("127.0.0.1", api.port)
    writer.write(raw("POST", "/v1/events", [*signed(b""), ("Transfer-Encoding", "chunked")]))
    for _ in range(5):
        writer.write(b"10000\r\n" + b" " * 65536 + b"\r\n")
    reply = await hear(reader)
    assert (reply.status, reply.problem()) == (413, "size")
    writer.close()


async def test_a_body_in_chunks_needs_no_length(api: Desk) -> None:
    """Chunked is fine, in pieces of any size."""
    reader, writer = await asyncio.open_connection("127.0.0.1", api.port)
    writer.write(raw("POST", "/v1/events", [*signed(BODY), ("Transfer-Encoding", "chunked")]))
    for byte in BODY:
        writer.write(b"1\r\n%c\r\n" % byte)
        await asyncio.sleep(0)
    writer.write(b"0\r\n\r\n")
    assert (await hear(reader)).status == 202
    writer.close()


@pytest.mark.parametrize("chunk", [b"zz\r\n", b"-1\r\n", b"5\r\nabc", b"ffffffffffffffffff\r\n"])
async def test_chunks_that_are_none(api: Desk, chunk: bytes) -> None:
    """400, not a wait for what never comes."""
    request = raw("POST", "/v1/events", [*signed(b"x"), ("Transfer-Encoding", "chunked")])
    reader, writer = await asyncio.open_connection("127.0.0.1", api.port)
    writer.write(request + chunk + b"\r\n\r\n\r\n")
    assert (await hear(reader)).status == 400
    writer.close()


async def test_a_length_and_chunks_together_are_refused(api: Desk) -> None:
    """400: what two servers read differently is a way to smuggle."""
    headers = [*signed(BODY), LENGTH, ("Transfer-Encoding", "chunked")]
    assert (await api.say(raw("POST", "/v1/events", headers, b"0\r\n\r\n"))).status == 400


async def test_who_waits_to_be_asked_is_asked(api: Desk) -> None:
    """Expect: 100-continue gets its 100, then the answer."""
    reader, writer = await asyncio.open_connection("127.0.0.1", api.port)
    writer.write(raw("POST", "/v1/events", [*signed(BODY), LENGTH, ("Expect", "100-Continue")]))
    assert (await reader.readuntil(b"\r\n\r\n")) == b"HTTP/1.1 100 Continue\r\n\r\n"
    writer.write(BODY)
    assert (await hear(reader)).status == 202
    writer.close()


async def test_a_slow_body_is_given_up(database_url: str, redis_url: str, key_prefix: str) -> None:
    """408 when not all of it has come in time, however steadily it drips; the connection ends."""
    async with desk(database_url, redis_url, key_prefix, body_within=timedelta(milliseconds=50)) as api:
        reader, writer = await asyncio.open_connection("127.0.0.1", api.port)
        writer.write(raw("POST", "/v1/events", [*signed(BODY), LENGTH], BODY[:10]))
        reply = await hear(reader)
        assert (reply.status, reply.problem(), reply.headers["connection"]) == (408, "slow", "close")
        assert api.counted.events["shop", "slow"] == 1
        writer.close()


async def test_who_hangs_up_disturbs_nobody(api: Desk) -> None:
    """In the head, in the body, or before the answer: the rest goes on."""
    request = raw("POST", "/v1/events", [*signed(BODY), LENGTH], BODY)
    for cut in (0, 5, len(request) - len(BODY) - 1, len(request) - 5, len(request)):
        for abort in (True, False):
            _, writer = await asyncio.open_connection("127.0.0.1", api.port)
            writer.write(request[:cut])
            await writer.drain()
            if abort:
                writer.transport.abort()
            else:
                writer.close()
    assert (await api.post(event("2"))).status == 202


@pytest.mark.parametrize(
    "request_",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\x00" * 100,
        b"BREW /v1/events HTTP/1.1\r\nHost: x\r\n\r\n",
        b"POST /v1/events HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n",
        b"POST /v1/events HTTP/1.1\r\nHost: x\r\nContent-Length: 1, 2\r\n\r\n",
        b"POST /v1/events HTTP/9.9\r\nHost: x\r\n\r\n",
        b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n",
        raw("POST", "/v1/events", [(f"X-{n}", "y") for n in range(5000)]),
        raw("POST", "/v1/events", [("X", "y" * 100_000)]),
    ],
    ids=range(8),
)
async def test_what_is_not_http_as_we_read_it(api: Desk, request_: bytes) -> None:
    """400, also for floods of headers and lines without end."""
    reply = await api.say(request_)
    assert (reply.status, reply.problem(), reply.headers["connection"]) == (400, "http", "close")


async def test_bodies_under_way_are_bounded(database_url: str, redis_url: str, key_prefix: str) -> None:
    """When all bodies together are more than this process may hold, the next one hears 503; room comes back."""
    async with desk(database_url, redis_url, key_prefix, most_held=2000) as api:
        first = await asyncio.open_connection("127.0.0.1", api.port)
        big = event("1", order_key="x" * 200) + b" " * 1500
        headers = [*signed(big), ("Content-Length", str(len(big))), ("Expect", "100-continue")]
        first[1].write(raw("POST", "/v1/events", headers))
        await first[0].readuntil(b"\r\n\r\n")
        first[1].write(big[:-1])
        async with asyncio.timeout(60):
            while (reply := await api.post(event("2") + b" " * 500)).status == 202:
                pass
        assert (reply.status, reply.problem(), reply.headers["retry-after"]) == (503, "store", "1")
        first[1].write(big[-1:])
        assert (await hear(first[0])).status == 202
        assert (await api.post(event("3") + b" " * 500)).status == 202
        first[1].close()


async def test_many_requests_at_once_on_one_connection(api: Desk) -> None:
    """A pipeline is answered in its order."""
    reader, writer = await asyncio.open_connection("127.0.0.1", api.port)
    for n in range(50):
        body = event(str(n))
        writer.write(raw("POST", "/v1/events", [*signed(body), ("Content-Length", str(len(body)))], body))
    replies = [await hear(reader) for _ in range(50)]
    assert [reply.json()["event_id"] for reply in replies] == [str(n) for n in range(50)]
    writer.close()


async def test_an_old_client_gets_its_answer_and_the_end(api: Desk) -> None:
    """HTTP/1.0 is answered, and the connection closed."""
    reader, writer = await asyncio.open_connection("127.0.0.1", api.port)
    writer.write(raw("POST", "/v1/events", [*signed(BODY), LENGTH], BODY).replace(b"HTTP/1.1", b"HTTP/1.0"))
    assert (await hear(reader)).status == 202
    assert await reader.read() == b""
    writer.close()


async def test_the_signature_is_of_the_bytes(api: Desk) -> None:
    """A single other byte, also of white space, is another body."""
    headers = [*signed(BODY), ("Content-Length", str(len(BODY) + 1))]
    assert (await api.say(raw("POST", "/v1/events", headers, BODY + b" "))).status == 401
    assert SHOP.keys == (KEY,)
