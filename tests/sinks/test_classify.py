"""What an answer means: the table of the design, and bodies that mean to confuse."""

from __future__ import annotations

import unicodedata
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sinks.answer import LONGEST_RETRY_AFTER, Answer, Failed, Stage, parse_retry_after
from sinks.classify import check_expression, classify, excerpt, sign_of
from sinks.partner import Partner
from streams.delivery import Dead, Outcome, Retry, Succeeded, Unknown
from streams.moves import Sign
from tests.partner import partner

PLAIN = partner("https://ab.example/payments")
STRICT = partner(
    "https://ab.example/payments",
    success="success",
    retry_codes=frozenset({"TRY_LATER", "17"}),
    already_accepted=frozenset({"BOOKED"}),
)
NOW = datetime(2026, 3, 2, 1, 15, tzinfo=UTC)


def _answer(
    status: int,
    body: bytes = b"",
    *,
    truncated: bool = False,
    after: timedelta | None = None,
    headers: tuple[tuple[str, str], ...] = (),
) -> Answer:
    return Answer(status, after, body, truncated, 1.0, 2.0, headers)


def _outcome(result: Answer | Failed, to: Partner = PLAIN, *, earlier: bool = False) -> Outcome:
    return classify(result, to, earlier_may_have_arrived=earlier)


@pytest.mark.parametrize("status", [200, 201, 202, 204, 299])
def test_success_by_status_alone(status: int) -> None:
    """Without a `success` expression any 2xx is success, whatever the body says."""
    assert _outcome(_answer(status, b"<h1>")) == Succeeded(reason=str(status))


@pytest.mark.parametrize("status", [408, 425, 429, 503])
def test_not_taken_is_retried(status: int) -> None:
    """These say that the partner did not take it; its own `Retry-After` goes with them."""
    wait = timedelta(seconds=7)
    assert _outcome(_answer(status, after=wait)) == Retry(
        reason=str(status), may_have_arrived=False, after=wait, pauses=status in {429, 503}
    )


def test_a_wait_is_capped() -> None:
    """A partner that asks for more than agreed gets what is agreed, whether all wait or one delivery."""
    short = partner("https://ab.example/payments", retry_after_max=timedelta(minutes=2))
    for status in (429, 500):
        outcome = _outcome(_answer(status, after=timedelta(days=1)), short)
        assert isinstance(outcome, Retry)
        assert (outcome.after, outcome.pauses) == (timedelta(minutes=2), status == 429)
        exact = _outcome(_answer(status, after=timedelta(seconds=119)), short)
        assert isinstance(exact, Retry)
        assert exact.after == timedelta(seconds=119)


def test_only_a_wish_pauses() -> None:
    """Without `Retry-After` a 429 or 503 speaks of its own delivery."""
    for status in (429, 503):
        assert _outcome(_answer(status)) == Retry(reason=str(status), may_have_arrived=False)


@pytest.mark.parametrize(
    ("expression", "answer", "arrived"),
    [
        ("status == `423`", _answer(423), False),
        ("body.state == 'busy'", _answer(200, b'{"success": true, "state": "busy"}'), False),
        ("contains(body, 'maintenance')", _answer(400, b"<h1>maintenance</h1>"), False),
        ("headers.\"x-busy\" == '1'", _answer(404, headers=(("x-busy", "1"),)), False),
        ("status == `302`", _answer(302), True),
        ("status >= `500`", _answer(500), True),
        ("status >= `500`", _answer(503), False),
    ],
)
def test_retry_when(expression: str, answer: Answer, *, arrived: bool) -> None:
    """Where it is true the answer is a Retry, before all else; whether it may have arrived goes by the status."""
    to = partner("https://ab.example/payments", success="success", retry_when=expression)
    assert _outcome(answer, to) == Retry(reason=f"{answer.status}, retry_when", may_have_arrived=arrived)


@pytest.mark.parametrize("expression", ["status == `423`", "body.retry", "length(body.none)", "'true'"])
def test_what_is_not_true_retries_nothing(expression: str) -> None:
    """False, null, text or an error: the answer is judged as without it."""
    to = partner("https://ab.example/payments", retry_when=expression)
    assert _outcome(_answer(200, b"{}"), to) == Succeeded(reason="200")
    assert _outcome(_answer(400, b"\xff"), to) == Dead(reason="400")


def test_what_it_says_of_the_partner() -> None:
    """Nobody there, or 5xx: failed. Any other answer: somebody is there. A request that cannot be made: nothing."""
    for status in (500, 501, 503, 599):
        assert sign_of(_answer(status)) is Sign.FAILED
    for status in (101, 200, 302, 400, 401, 429, 600):
        assert sign_of(_answer(status)) is Sign.ANSWERED
    for stage in Stage:
        failed = Failed(stage, may_have_arrived=False, reason="x", sent_at=None, ended_at=1.0)
        assert sign_of(failed) is (Sign.NOTHING if stage is Stage.REQUEST else Sign.FAILED)


@pytest.mark.parametrize("status", [500, 502, 504])
def test_server_errors_may_have_arrived(status: int) -> None:
    """These leave open whether the partner took it."""
    assert _outcome(_answer(status)) == Retry(reason=str(status), may_have_arrived=True)


@pytest.mark.parametrize("status", [400, 401, 402, 403, 404, 405, 409, 410, 413, 415, 418, 422, 451, 499])
def test_other_client_errors_are_dead(status: int) -> None:
    """Any other 4xx is a no, with the partner's code as the reason."""
    body = b'{"error": {"code": "ACCOUNT_CLOSED"}}'
    assert _outcome(_answer(status, body)) == Dead(reason=f"{status}: ACCOUNT_CLOSED")


@pytest.mark.parametrize("status", [101, 300, 301, 302, 304, 307, 308, 501, 505, 599, 600, 999])
def test_the_unforeseen_is_unknown(status: int) -> None:
    """1xx, 3xx and whatever nobody foresaw say nothing about the payment."""
    assert _outcome(_answer(status)) == Unknown(reason=f"unexpected status {status}")


def test_conflict_after_an_attempt_that_may_have_arrived() -> None:
    """A 409 may be our own payment coming back: unknown, and success where the partner lists it."""
    listed = partner("https://ab.example/", already_accepted=frozenset({"409"}))
    assert isinstance(_outcome(_answer(409), earlier=True), Unknown)
    assert isinstance(_outcome(_answer(409), listed, earlier=True), Succeeded)
    assert isinstance(_outcome(_answer(409, b'{"code": "BOOKED"}'), STRICT, earlier=True), Succeeded)
    assert isinstance(_outcome(_answer(409, b'{"code": "OTHER"}'), STRICT, earlier=True), Unknown)
    assert isinstance(_outcome(_answer(409), listed), Dead)


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b'{"success": true}', Succeeded(reason="200")),
        (b'{"success": false, "code": "TRY_LATER"}', Retry(reason="200: TRY_LATER", may_have_arrived=False)),
        (b'{"success": false, "error": {"code": 17}}', Retry(reason="200: 17", may_have_arrived=False)),
        (b'{"success": false, "code": "REFUSED"}', Dead(reason="200, success is false: REFUSED")),
        (b'{"success": false, "code": "BOOKED"}', Dead(reason="200, success is false: BOOKED")),
        (b'{"success": false}', Dead(reason="200, success is false")),
        (b'{"success": "true"}', Dead(reason="200, success is false")),
        (b'{"success": 1}', Dead(reason="200, success is false")),
        (b"[]", Dead(reason="200, success is false")),
        (b"null", Dead(reason="200, success is false")),
        (b'{"success": true', Unknown(reason="200, body is not JSON")),
        (b"<h1>OK</h1>", Unknown(reason="200, body is not JSON")),
        (b"", Unknown(reason="200, body is not JSON")),
        (b'{"success": true, "a": "\xff"}', Unknown(reason="200, body is not JSON")),
        (b"[" * 65_000, Unknown(reason="200, body is not JSON")),
    ],
)
def test_success_expression(body: bytes, expected: Outcome) -> None:
    """With an expression only true is success; a known code is a retry, a body that does not parse is unknown."""
    assert _outcome(_answer(200, body), STRICT) == expected


def test_listed_code_after_an_attempt_that_may_have_arrived() -> None:
    """A 200 that says `already booked`, after an attempt that may have arrived, is the payment itself."""
    body = b'{"success": false, "code": "BOOKED"}'
    assert isinstance(_outcome(_answer(200, body), STRICT, earlier=True), Succeeded)


def test_cut_off_body_is_unknown() -> None:
    """A body longer than what is read cannot tell success."""
    result = _answer(200, b'{"success": true, "x": "', truncated=True)
    assert _outcome(result, STRICT) == Unknown(reason="200, body is cut off")


def test_expression_that_fails_on_this_body_is_unknown() -> None:
    """An expression that cannot be applied to what came back decides nothing."""
    to = partner("https://ab.example/", success="starts_with(status, 'OK')")
    assert isinstance(_outcome(_answer(200, b'{"status": 7}'), to), Unknown)
    assert isinstance(_outcome(_answer(200, b'{"status": "OK"}'), to), Succeeded)


@pytest.mark.parametrize(
    ("expression", "body"),
    [
        ("code > `0`", b'{"code": "0"}'),
        ("ceil(to_number(code)) == `0`", b'{"code": "1e999"}'),
        ("ceil(to_number(code)) == `0`", b'{"code": "nan"}'),
        ("contains(code, `1`)", b'{"code": "100"}'),
        ("avg([code]) == `0`", b'{"code": 1' + b"0" * 400 + b"}"),
        ("code[::0] == `0`", b'{"code": [1]}'),
    ],
)
def test_what_python_itself_says_to_odd_values_is_unknown(expression: str, body: bytes) -> None:
    """Where jmespath lets an error of Python's through, the attempt has an outcome all the same."""
    to = partner("https://ab.example/", success=expression)
    assert isinstance(_outcome(_answer(200, body), to), Unknown)


@pytest.mark.parametrize("stage", list(Stage))
@pytest.mark.parametrize("sent", [True, False])
def test_failures(stage: Stage, sent: bool) -> None:
    """No answer is a retry that keeps whether it may have arrived; no HTTP is unknown, no request is dead."""
    failure = Failed(stage, may_have_arrived=sent, reason="why", sent_at=1.0 if sent else None, ended_at=2.0)
    expected: Outcome
    match stage:
        case Stage.REQUEST:
            expected = Dead(reason="why")
        case Stage.GARBLED:
            expected = Unknown(reason="why")
        case _:
            expected = Retry(reason="why", may_have_arrived=sent)
    assert _outcome(failure) == expected


@given(
    status=st.integers(100, 999), body=st.binary(max_size=300), earlier=st.booleans(), strict=st.booleans()
)
def test_every_answer_has_an_outcome(status: int, body: bytes, earlier: bool, strict: bool) -> None:
    """No status and no body raises, and the reason is one short printable line."""
    outcome = _outcome(_answer(status, body), STRICT if strict else PLAIN, earlier=earlier)
    assert outcome.reason.isprintable()
    assert len(outcome.reason) < 120


@given(st.binary(max_size=3000))
def test_excerpt_is_fit_for_a_text_column(body: bytes) -> None:
    """Whatever came, at most 200 characters of one line are kept, none of them control or format characters."""
    text = excerpt(body)
    assert len(text) <= 200
    assert not any(unicodedata.category(c).startswith("C") for c in text)


def test_excerpt_keeps_what_can_be_read() -> None:
    """Readable text stays, on one line; NUL, escapes and direction overrides go."""
    assert excerpt("Účet\x00 zrušen\r\n\x1b[31m\u202eok".encode()) == "Účet zrušen [31mok"


def test_expression_is_checked() -> None:
    """A partner's expression that is no JMESPath, or calls what is not there, is an error that says so."""
    check_expression("success")
    check_expression("starts_with(code, 'OK') && length(keys(@)) > `0`")
    with pytest.raises(ValueError, match="Incomplete expression"):
        check_expression("success ==")
    with pytest.raises(ValueError, match="no function startswith, did you mean starts_with"):
        check_expression("success || [a.b][?startswith(c, 'OK')] == `[]`")


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, None),
        ("0", timedelta(0)),
        (" 120 ", timedelta(minutes=2)),
        ("9" * 40, LONGEST_RETRY_AFTER),
        ("-1", None),
        ("soon", None),
        ("", None),
        ("Mon, 02 Mar 2026 01:16:00 GMT", timedelta(minutes=1)),
        ("Mon, 02 Mar 2026 01:16:00", timedelta(minutes=1)),
        ("Mon, 02 Mar 2026 01:00:00 GMT", timedelta(0)),
        ("Fri, 31 Dec 9999 23:59:59 GMT", LONGEST_RETRY_AFTER),
        ("Mon, 99 Foo 2026 01:16:00 GMT", None),
    ],
)
def test_retry_after(value: str | None, expected: timedelta | None) -> None:
    """Seconds or an HTTP date, never negative, never without end, nothing for what cannot be read."""
    assert parse_retry_after(value, NOW) == expected
