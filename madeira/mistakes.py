"""Mistakes in jobs.toml as sentences: where, what, and how to mend it.

tomllib keeps no lines, so `lines_of` looks for them in the text: good enough to point, never relied on for
values.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

Path = tuple[str | int, ...]
"""Keys from the root of the file; an int is a place in an array of tables, from 0."""

_HEADER = re.compile(r"\s*(\[\[?)\s*([^\[\]]+?)\s*\]\]?\s*(?:#.*)?$")
_KEY = re.compile(
    r"""\s*((?:[A-Za-z0-9_-]+|"[^"]*"|'[^']*')(?:\s*\.\s*(?:[A-Za-z0-9_-]+|"[^"]*"|'[^']*'))*)\s*="""
)
_PART = re.compile(r"""[A-Za-z0-9_-]+|"[^"]*"|'[^']*'""")
_SECRET = re.compile(r"(?i)(secret|password|passwd|token|api_?key|signing_?keys?$|^keys?$|^dsn$)")


def lines_of(text: str) -> dict[Path, int]:
    """Where each table and key of a TOML text begins, lines counted from 1."""
    found: dict[Path, int] = {}
    counts: dict[Path, int] = {}
    table: Path = ()
    open_quotes = ""
    for number, line in enumerate(text.splitlines(), start=1):
        if open_quotes:
            if line.count(open_quotes) % 2:
                open_quotes = ""
            continue
        for quotes in ('"""', "'''"):
            if line.count(quotes) % 2:
                open_quotes = quotes
        if header := _HEADER.match(line):
            table = _resolve(_parts(header[2]), counts)
            if header[1] == "[[":
                counts[table] = counts.get(table, 0) + 1
                table = (*table, counts[table] - 1)
            found.setdefault(table, number)
        elif key := _KEY.match(line):
            found.setdefault((*table, *_parts(key[1])), number)
    return found


def _parts(dotted: str) -> Path:
    return tuple(part.strip("\"'") for part in _PART.findall(dotted))


def _resolve(parts: Path, counts: Mapping[Path, int]) -> Path:
    """`[jobs.source]` belongs to the last `[[jobs]]` before it."""
    resolved: Path = ()
    for position, part in enumerate(parts):
        resolved = (*resolved, part)
        if resolved in counts and position < len(parts) - 1:
            resolved = (*resolved, counts[resolved] - 1)
    return resolved


@dataclass(slots=True)
class Mistakes:
    """Collects what is wrong in one file; `found` holds a line each, in the order of the file."""

    file: str
    lines: Mapping[Path, int]
    names: dict[Path, str] = field(default_factory=dict)
    """What a path is called instead of its position: ("jobs", 0) → "jobs.payment-orders"."""
    _found: list[tuple[int, str]] = field(default_factory=list)

    def add(self, path: Path, sentence: str) -> None:
        """`sentence` follows the place, so it begins with a verb: `must be above 0, is 0`."""
        line = self._line(path)
        place = f"{self.file}:{line}" if line else self.file
        self._found.append((line, f"{place}: {self.called(path)} {sentence}"))

    def add_invalid(self, path: Path, error: ValidationError, model: type[BaseModel]) -> None:
        """Every mistake that pydantic found in the table at `path`."""
        for details in error.errors(include_url=False):
            self._add_detail(path, details, model)

    def called(self, path: Path) -> str:
        """The path in the words of the file: `jobs.payment-orders.source.query_file`."""
        text, rest = "", path
        for length in range(len(path), 0, -1):
            if path[:length] in self.names:
                text, rest = self.names[path[:length]], path[length:]
                break
        for part in rest:
            text += f"[{part + 1}]" if isinstance(part, int) else f".{part}" if text else part
        return text or "the file"

    @property
    def found(self) -> tuple[str, ...]:
        """All sentences, by line."""
        return tuple(sentence for _, sentence in sorted(self._found, key=lambda item: item[0]))

    def _line(self, path: Path) -> int:
        for length in range(len(path), 0, -1):
            if path[:length] in self.lines:
                return self.lines[path[:length]]
            below = [line for found, line in self.lines.items() if found[:length] == path[:length]]
            if below:
                # [partners.AB] alone makes `partners`, too.
                return min(below)
        return 0

    def _add_detail(self, path: Path, details: ErrorDetails, model: type[BaseModel]) -> None:
        inner: Path = details["loc"]
        if details["type"] == "extra_forbidden":
            table = _model_at(model, inner[:-1])
            self.add((*path, *inner), unknown_key(str(inner[-1]), tuple(table.model_fields)))
        else:
            self.add((*path, *inner), _sentence(details, _example_at(model, inner)))


def unknown_key(key: str, known: tuple[str, ...]) -> str:
    """What to say of a key that nobody reads, with the nearest one that somebody does."""
    by_name = next((name for name in known if name == f"{key}_env"), None)
    if by_name is None and _SECRET.search(key):
        by_name = next((name for name in known if name.endswith("_env")), None)
    if by_name is not None:
        return f"would put a secret into the file: remove it and name an environment variable with {by_name}"
    if any(word in key for word in ("weekday", "day_of_week", "days", "cron")):
        return 'is no key here: write calendar = "weekdays" (Monday to Friday) or "all"'
    near = get_close_matches(key, known, n=1, cutoff=0.6)
    if near:
        return f"is no key here: did you mean {near[0]}?"
    return f"is no key here: remove it, or use one of {', '.join(known)}"


def nearest(name: str, known: Iterable[str]) -> str:
    """The end of a sentence about an unknown name: the nearest known one, or what there is."""
    by_small = {each.lower(): each for each in known}
    if not by_small:
        return "none is configured"
    near = get_close_matches(name.lower(), by_small, n=1)
    return f"did you mean {by_small[near[0]]}?" if near else f"there are {listed(list(by_small.values()))}"


def listed(names: Sequence[str]) -> str:
    """The first three names, and how many more there are."""
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _sentence(details: ErrorDetails, example: str) -> str:
    context = details.get("ctx", {})
    shown = _shown(details["input"])
    match details["type"]:
        case "missing":
            return f"is missing: write {example}"
        case "greater_than":
            return f"must be above {context['gt']}, is {shown}"
        case "greater_than_equal":
            return f"must be at least {context['ge']}, is {shown}"
        case "less_than_equal":
            return f"must be at most {context['le']}, is {shown}"
        case "string_type":
            return f"must be text in quotes, is {shown}: write {example}"
        case "int_type":
            return f"must be a whole number, is {shown}: write {example}"
        case "bool_type":
            return f"must be true or false, is {shown}"
        case "list_type":
            return f"must be a list in brackets, is {shown}: write {example}"
        case "model_type" | "model_attributes_type" | "dict_type":
            return (
                f"must be a table, is {shown}: {f'write {example}' if example else 'see docs/jobs-toml.md'}"
            )
        case "literal_error":
            return f"must be {context['expected']}, is {shown}"
        case "value_error":
            return str(context["error"])
        case _:
            return f"is not right ({details['msg']}): write {example}"


def _shown(value: object) -> str:
    """A value as the file has it, cut short; tables and lists are only named."""
    match value:
        case bool():
            return "true" if value else "false"
        case str():
            return f'"{value[:40]}…"' if len(value) > 40 else f'"{value}"'
        case int() | float():
            return str(value)
        case list():
            return "a list"
        case dict():
            return "a table"
        case _:
            return f"a {type(value).__name__}"


def _model_at(model: type[BaseModel], path: Path) -> type[BaseModel]:
    """The model of the table at `path` below `model`."""
    for part in path:
        inner = model.model_fields[str(part)].annotation if str(part) in model.model_fields else None
        if isinstance(inner, type) and issubclass(inner, BaseModel):
            model = inner
    return model


def _example_at(model: type[BaseModel], path: Path) -> str:
    table = _model_at(model, path[:-1])
    name = next((str(part) for part in reversed(path) if str(part) in table.model_fields), "")
    if not name:
        return ""
    examples = table.model_fields[name].examples or []
    return f"{name} = {examples[0]}" if examples else f"what docs/jobs-toml.md says of {name}"
