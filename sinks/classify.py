"""What an answer means for the delivery: succeeded, retry, dead or unknown. Pure."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator
from difflib import get_close_matches
from functools import lru_cache
from typing import TYPE_CHECKING, Final

import jmespath
import msgspec
from jmespath.exceptions import JMESPathError
from jmespath.functions import Functions
from jmespath.parser import ParsedResult

from sinks.answer import Answer, Failed, Stage
from sinks.partner import Partner
from streams.delivery import Dead, Outcome, Retry, Succeeded, Unknown
from streams.moves import Sign

if TYPE_CHECKING:
    from jmespath.visitor import _TreeNode  # only its stubs name the shape of a parsed expression

EXCERPT_CHARACTERS: Final = 200

_FUNCTION_NAMES: Final = frozenset(Functions.FUNCTION_TABLE)

_RETRY_NOT_TAKEN: Final = frozenset({408, 425, 429, 503})
_PAUSING: Final = frozenset({429, 503})
"""With a `Retry-After` these speak of everything that is sent to the partner, not of one delivery."""
_RETRY_MAY_HAVE_ARRIVED: Final = frozenset({500, 502, 504})
_CODE_CHARACTERS: Final = 64


def classify(result: Answer | Failed, partner: Partner, *, earlier_may_have_arrived: bool) -> Outcome:
    """The outcome of one attempt.

    `earlier_may_have_arrived`: an earlier attempt of this delivery may have reached the partner, so a 409
    can be our own payment coming back. A body's *code* is its top-level `code`, else `error.code`, a string
    or an integer; it is compared as text with the partner's `retry_codes` and `already_accepted`.
    `already_accepted` may also hold `409`. `retry_when` is asked before all else.
    """
    if isinstance(result, Failed):
        return _failed(result)
    outcome = _answered(result, partner, earlier_may_have_arrived=earlier_may_have_arrived)
    if isinstance(outcome, Retry) and result.retry_after is not None:
        return Retry(
            reason=outcome.reason,
            may_have_arrived=outcome.may_have_arrived,
            after=min(result.retry_after, partner.retry_after_max),
            pauses=result.status in _PAUSING,
        )
    return outcome


def sign_of(result: Answer | Failed) -> Sign:
    """What it says of the partner as a whole: that nobody is there, that somebody answered, or nothing."""
    if isinstance(result, Failed):
        return Sign.NOTHING if result.stage is Stage.REQUEST else Sign.FAILED
    return Sign.FAILED if 500 <= result.status <= 599 else Sign.ANSWERED


def _answered(result: Answer, partner: Partner, *, earlier_may_have_arrived: bool) -> Outcome:
    status = result.status
    if partner.retry_when is not None and _wants_retry(result, partner.retry_when):
        arrived = not (200 <= status <= 299 or 400 <= status <= 499 or status in _RETRY_NOT_TAKEN)
        return Retry(reason=f"{status}, retry_when", may_have_arrived=arrived)
    if 200 <= status <= 299:
        return _accepted(result, partner, earlier_may_have_arrived=earlier_may_have_arrived)
    if status in _RETRY_NOT_TAKEN:
        return Retry(reason=str(status), may_have_arrived=False)
    if status in _RETRY_MAY_HAVE_ARRIVED:
        return Retry(reason=str(status), may_have_arrived=True)
    if status == 409 and earlier_may_have_arrived:
        if "409" in partner.already_accepted or _code(result.body) in partner.already_accepted:
            return Succeeded(reason="409, already accepted")
        return Unknown(reason="409 after an attempt that may have arrived")
    if 400 <= status <= 499:
        return Dead(reason=_with_code(str(status), _code(result.body)))
    return Unknown(reason=f"unexpected status {status}")


def excerpt(body: bytes) -> str:
    """At most 200 characters of what the partner wrote, on one line, fit for PostgreSQL, logs and terminals.

    Whatever is not UTF-8 becomes U+FFFD; NUL, control, format and unassigned characters are gone.
    """
    text = body[: EXCERPT_CHARACTERS * 8].decode("utf-8", errors="replace")
    return _clean(text, EXCERPT_CHARACTERS)


def check_expression(expression: str) -> None:
    """Raises `ValueError`, saying what is wrong, unless `expression` is JMESPath whose functions all exist.

    JMESPath itself looks for a function only when it is called, and then every answer would be unknown.
    """
    try:
        parsed = _compiled(expression).parsed
    except JMESPathError as error:
        raise ValueError(str(error).splitlines()[0].rstrip(":.")) from None
    for name in _functions(parsed):
        if name not in _FUNCTION_NAMES:
            near = get_close_matches(name, _FUNCTION_NAMES, n=1)
            raise ValueError(f"there is no function {name}" + (f", did you mean {near[0]}?" if near else ""))


def _functions(node: _TreeNode) -> Iterator[str]:
    if node["type"] == "function_expression":
        yield str(node["value"])
    for child in node["children"]:
        yield from _functions(child)


def _failed(failure: Failed) -> Outcome:
    match failure.stage:
        case Stage.REQUEST:
            return Dead(reason=failure.reason)
        case Stage.GARBLED:
            return Unknown(reason=failure.reason)
        case _:
            return Retry(reason=failure.reason, may_have_arrived=failure.may_have_arrived)


def _accepted(answer: Answer, partner: Partner, *, earlier_may_have_arrived: bool) -> Outcome:
    status = str(answer.status)
    if partner.success is None:
        return Succeeded(reason=status)
    try:
        document = _document(answer.body)
        verdict = _compiled(partner.success).search(document)
    except (msgspec.DecodeError, RecursionError):
        return Unknown(
            reason=f"{status}, body is cut off" if answer.truncated else f"{status}, body is not JSON"
        )
    except Exception:  # noqa: BLE001 - beside its own errors jmespath lets through what Python says to odd values
        return Unknown(reason=f"{status}, success cannot be told from this body")
    if verdict is True:
        return Succeeded(reason=status)
    code = _code_in(document)
    if code in partner.retry_codes:
        return Retry(reason=_with_code(status, code), may_have_arrived=False)
    if earlier_may_have_arrived and code in partner.already_accepted:
        return Succeeded(reason=_with_code(f"{status}, already accepted", code))
    return Dead(reason=_with_code(f"{status}, success is false", code))


def _wants_retry(answer: Answer, expression: str) -> bool:
    """Whether `retry_when` is true of it; what cannot be told is not."""
    body: object
    try:
        body = _document(answer.body)
    except (msgspec.DecodeError, RecursionError):
        body = answer.body.decode("utf-8", errors="replace")
    document = {"status": answer.status, "headers": dict(answer.headers), "body": body}
    try:
        return _compiled(expression).search(document) is True
    except Exception:  # noqa: BLE001 - as with success
        return False


@lru_cache(maxsize=1024)
def _compiled(expression: str) -> ParsedResult:
    return jmespath.compile(expression)


def _document(body: bytes) -> object:
    document: object = msgspec.json.decode(body)
    return document


def _code(body: bytes) -> str | None:
    try:
        return _code_in(_document(body))
    except (msgspec.DecodeError, RecursionError):
        return None


def _code_in(document: object) -> str | None:
    if not isinstance(document, dict):
        return None
    error = document.get("error")
    for code in (document.get("code"), error.get("code") if isinstance(error, dict) else None):
        if isinstance(code, str) or (isinstance(code, int) and not isinstance(code, bool)):
            return str(code)
    return None


def _with_code(reason: str, code: str | None) -> str:
    shown = _clean(code, _CODE_CHARACTERS) if code else ""
    return f"{reason}: {shown}" if shown else reason


def _clean(text: str, characters: int) -> str:
    # Categories C*: control, format (a right-to-left override turns a log line round), surrogate, unassigned.
    line = " ".join(text.split())
    return "".join(c for c in line if not unicodedata.category(c).startswith("C"))[:characters]
