"""A route's `body`: JMESPath over an event's JSON, with every number spelled as the sender spelled it. Pure.

A body is put together from what came, never calculated: an amount that went through a float, or a sum that went
through a context's precision, would be another amount. So functions that calculate are refused beforehand, and a
number stays the text that it was.
"""

from __future__ import annotations

import json
import numbers
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from decimal import Decimal
from difflib import get_close_matches
from typing import TYPE_CHECKING, Final, TypeGuard

from jmespath.exceptions import JMESPathError
from jmespath.functions import Functions, signature
from jmespath.parser import ParsedResult, Parser
from jmespath.visitor import Options

if TYPE_CHECKING:
    from jmespath.visitor import _TreeNode  # only its stubs name the shape of a parsed expression

MOST_RESHAPED: Final = 65_536
"""Bytes of a payload that a route may reshape: about 20 ms of work, for which other events of the step wait."""

_CALCULATING: Final = frozenset({"abs", "avg", "ceil", "floor", "sum"})
_NUMBER: Final = re.compile(r"-?(0|[1-9]\d*)(\.\d+)?([eE][+-]?\d+)?", re.ASCII)  # RFC 8259, 6
_LITERAL: Final = re.compile(r"`((?:[^`\\]|\\.)*)`", re.DOTALL)
_LONE_SURROGATE: Final = re.compile("[\ud800-\udfff]")


@dataclass(frozen=True, slots=True)
class Unfit:
    """A route took the event and cannot send it. `why` is one short line without anything of the payload."""

    why: str


class Number(str):
    """A number of JSON: the text that it was, compared by the exact value that it has.

    Text, and not a `Decimal` that keeps one, because making that for each number of a large payload would take a
    worker's loop long enough for its sends to miss their slots.
    """

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return _is_number(other) and Decimal(self) == Decimal(other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __lt__(self, other: object) -> bool:
        return Decimal(self) < _number(other)

    def __le__(self, other: object) -> bool:
        return Decimal(self) <= _number(other)

    def __gt__(self, other: object) -> bool:
        return Decimal(self) > _number(other)

    def __ge__(self, other: object) -> bool:
        return Decimal(self) >= _number(other)

    def __hash__(self) -> int:
        return hash(Decimal(self))


def _is_number(value: object) -> TypeGuard[Number | int]:
    return type(value) in (Number, int)


def _number(value: object) -> Decimal:
    if not _is_number(value):
        raise TypeError("a number is not compared with anything else")
    return Decimal(value)


numbers.Number.register(Number)  # what JMESPath's comparisons ask for


class _Exact(Functions):
    """JMESPath's functions, for which a `Number` is a number."""

    def _get_allowed_pytypes(self, types: Sequence[str]) -> tuple[list[str], list[tuple[str, ...]]]:
        allowed, inner = super()._get_allowed_pytypes(types)  # type: ignore[misc]  # not in its stubs
        return _with_number(allowed), [tuple(_with_number(names)) for names in inner]

    def _convert_to_jmespath_type(self, pyobject: str) -> str:
        if pyobject == Number.__name__:
            return "number"
        return str(super()._convert_to_jmespath_type(pyobject))  # type: ignore[misc]  # not in its stubs

    @signature({"types": []})
    def _func_type(self, arg: object) -> str:
        return self._convert_to_jmespath_type(type(arg).__name__)

    @signature({"types": []})
    def _func_to_string(self, arg: object) -> str:
        return arg if isinstance(arg, str) and not isinstance(arg, Number) else _written(arg)

    @signature({"types": []})
    def _func_to_number(self, arg: object) -> Number | None:
        if isinstance(arg, Number):
            return arg
        return Number(arg) if isinstance(arg, str) and _NUMBER.fullmatch(arg) else None

    @signature({"types": ["string", "array", "object"]})
    def _func_length(self, arg: str | list[object] | dict[str, object]) -> Number:
        return Number(str(len(arg)))


def _with_number(names: Sequence[str]) -> list[str]:
    return [*names, Number.__name__] if "float" in names else list(names)


class _Parser(Parser):
    """JMESPath's parser, for which a number between backticks keeps its spelling, too."""

    def __init__(self, expression: str) -> None:
        super().__init__()
        self._text = expression

    def _token_nud_literal(self, token: dict[str, object]) -> dict[str, object]:
        node: dict[str, object] = super()._token_nud_literal(token)  # type: ignore[misc]  # not in its stubs
        start = token["start"]
        found = _LITERAL.match(self._text, start) if isinstance(start, int) else None
        if found:
            with suppress(ValueError):  # a text without quotes, which JMESPath once allowed
                node["value"] = _read(found[1].replace("\\`", "`"))
        return node

    def parsed(self) -> ParsedResult:
        """The expression, past the cache that all parsers of the process share."""
        result: ParsedResult = self._do_parse(self._text)  # type: ignore[attr-defined]  # not in its stubs
        return result


class Reshape:
    """One compiled expression. Raises `ValueError`, saying what is wrong with it."""

    __slots__ = ("_options", "_parsed")

    def __init__(self, expression: str) -> None:
        try:
            self._parsed = _Parser(expression).parsed()
        except JMESPathError as error:
            raise ValueError(str(error).splitlines()[0].rstrip(":.")) from None
        for name in _functions(self._parsed.parsed):
            if name in _CALCULATING:
                raise ValueError(f"{name} calculates, and a body only puts together what came")
            if name not in _Exact.FUNCTION_TABLE:
                near = get_close_matches(name, _Exact.FUNCTION_TABLE, n=1)
                raise ValueError(
                    f"there is no function {name}" + (f", did you mean {near[0]}?" if near else "")
                )
        self._options = Options(custom_functions=_Exact())

    def __call__(self, payload: bytes) -> bytes | Unfit:
        """The body that the expression makes of a payload, as UTF-8 JSON without white space, keys in the
        expression's order; the same payload always makes the same bytes."""
        if len(payload) > MOST_RESHAPED:
            return Unfit(f"body: the payload is longer than {MOST_RESHAPED:,} bytes")
        try:
            document = _read(payload.decode())
        except _TwiceNamed:
            return Unfit("body: the payload names a key twice")
        except RecursionError:
            return Unfit("body: the payload is nested too deeply")
        except ValueError:
            return Unfit("body: the payload is not JSON")
        try:
            result = self._parsed.search(document, options=self._options)
            if result is None:
                return Unfit("body: the expression finds nothing in this payload")
            return _written(result).encode()
        except RecursionError:
            return Unfit("body: the payload is nested too deeply")
        except Exception:  # noqa: BLE001 - beside its own errors jmespath lets through what Python says to odd values
            return Unfit("body: the expression does not fit this payload")


class _TwiceNamed(ValueError):
    """An object has a key twice: which one is meant is not ours to say."""


def _functions(node: _TreeNode) -> Iterator[str]:
    if node["type"] == "function_expression":
        yield str(node["value"])
    for child in node["children"]:
        if isinstance(child, dict):
            yield from _functions(child)


def _read(text: str) -> object:
    document: object = json.loads(
        text, parse_int=Number, parse_float=Number, parse_constant=_no_number, object_pairs_hook=_once
    )
    return document


def _once(pairs: list[tuple[str, object]]) -> dict[str, object]:
    named = dict(pairs)
    if len(named) < len(pairs):
        raise _TwiceNamed
    return named


def _no_number(text: str) -> object:
    raise ValueError(f"{text} is no JSON")


def _written(value: object) -> str:
    kind = type(value)
    if kind is Number:
        return str(value)
    if isinstance(value, str):
        # Half a character has no UTF-8; it goes out escaped, as it must have come in.
        text = json.dumps(value, ensure_ascii=False)
        return text if text.isascii() else _LONE_SURROGATE.sub(lambda half: f"\\u{ord(half[0]):04x}", text)
    if isinstance(value, list):
        return f"[{','.join([_written(item) for item in value])}]"
    if isinstance(value, dict):
        return f"{{{','.join([f'{_written(key)}:{_written(item)}' for key, item in value.items()])}}}"
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    raise TypeError(f"no JSON for {kind.__name__}")
