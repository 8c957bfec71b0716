"""The values of `[sources]` and `[[routes]]`, and what else speaks of live events.

As in `madeira.values`, every function raises ValueError with the end of a sentence that begins with the
value's place.
"""

from __future__ import annotations

import re
from difflib import get_close_matches

from madeira.values import endpoint
from pipelines.route import BY_ROUTING_KEY, check_body, check_target, example_target
from streams.envelope import NAME

MOST_TAGS = 16
PLACES = ("routing_key", "event_id", "event_type", "source", "tags.NAME")
"""What a template may be filled with; NAME stands for the name of a tag."""

_EVENT_TYPE_PATTERN = re.compile(r"[A-Za-z0-9._:*-]+")
_HOST = re.compile(r"(\[[0-9a-f:.]{2,45}\]|[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?)(:([0-9]{1,5}))?")
_PLACE = re.compile(r"\{([^{}]*)\}")
_LONGEST_TYPE = 128
_LONGEST_KEY = 256
_LONGEST_TAG = 256
_LONGEST_ADDRESS = 2048


def names(value: object) -> tuple[str, ...]:
    """A name or a list of names, each once."""
    found = _texts(value, 'must be a name or a list of names: write "shop"')
    for name in found:
        if not NAME.fullmatch(name):
            raise ValueError(f"must be 1 to 64 letters, digits, _ or -, has {name[:80]!r}")
    return found


def recipients(value: object) -> tuple[str, ...]:
    """Partners, or the place that stands for the one that the routing key names."""
    if value == []:
        raise ValueError('names nobody: write the partners it sends to, like ["AB"]')
    found = _texts(value, f'must be a partner or a list of partners: write ["AB"] or "{BY_ROUTING_KEY}"')
    for name in found:
        if name != BY_ROUTING_KEY and not NAME.fullmatch(name):
            raise ValueError(f'must have names of partners or "{BY_ROUTING_KEY}" in it, has {name[:80]!r}')
    return found


def event_types(value: object) -> tuple[str, ...]:
    """Patterns of event types, in which only `*` is special."""
    found = _texts(value, 'must be a pattern or a list of patterns: write "payment.*"')
    for pattern in found:
        if not _EVENT_TYPE_PATTERN.fullmatch(pattern):
            raise ValueError(
                f"can match no event, is {pattern[:80]!r}: a type has letters, digits, ., _, : and -, "
                "and * stands for any text"
            )
        if len(pattern.replace("*", "")) > _LONGEST_TYPE:
            raise ValueError(f"can match no event: a type has at most {_LONGEST_TYPE} characters")
    return found


def routing_keys(value: object) -> tuple[str, ...]:
    """Patterns of routing keys, in which only `*` is special."""
    found = _texts(value, 'must be a pattern or a list of patterns: write "AB"')
    for pattern in found:
        if not pattern:
            raise ValueError("is empty: leave it out for events with any routing key or none")
        if not pattern.isprintable() or len(pattern.replace("*", "")) > _LONGEST_KEY:
            raise ValueError(f"can match no event: a key is at most {_LONGEST_KEY} printable characters")
    return found


def tags(value: object) -> tuple[tuple[str, str], ...]:
    """Tags by name, sorted."""
    if not isinstance(value, dict):
        raise ValueError('must be a table: write tags = { region = "sh" }')  # noqa: TRY004 - what pydantic collects
    if len(value) > MOST_TAGS:
        raise ValueError(f"must be at most {MOST_TAGS} tags, are {len(value)}")
    for name, content in value.items():
        if not isinstance(name, str) or not NAME.fullmatch(name):
            raise ValueError(f"has {str(name)[:80]!r}: a tag's name is 1 to 64 letters, digits, _ or -")
        if not isinstance(content, str) or not 0 < len(content) <= _LONGEST_TAG or not content.isprintable():
            raise ValueError(f'has {name}, which must be 1 to {_LONGEST_TAG} printable characters, like "sh"')
    return tuple(sorted((str(name), str(content)) for name, content in value.items()))


def hosts(value: object) -> tuple[str, ...]:
    """Hosts as they stand in a URL, with or without a port, in small letters."""
    found = _texts(value, 'must be a list of hosts: write ["alt.example", "alt.example:8443"]')
    for host in found:
        fits = _HOST.fullmatch(host)
        if fits is None or (fits[4] is not None and not 0 < int(fits[4]) < 65536):
            raise ValueError(
                f"has {host[:80]!r}: write each as host or host:port in small letters, "
                'like "alt.example:8443", without https:// and path'
            )
    return found


def expression(value: str) -> str:
    """A JMESPath expression that makes a body."""
    try:
        check_body(value)
    except ValueError as error:
        raise ValueError(
            f"must be a JMESPath expression, like {{order: id, total: amount}}, is {value[:80]!r} ({error})"
        ) from None
    return value


def template(value: str) -> str:
    """An address with places that each event fills, all of them behind a host that stands there literally."""
    for place in _PLACE.findall(value):
        if place in PLACES[:-1] or (place.startswith("tags.") and NAME.fullmatch(place[len("tags.") :])):
            continue
        near = get_close_matches(place, PLACES, n=1)
        meant = (
            f"did you mean {{{near[0]}}}?" if near else f"there are {', '.join(map('{{{}}}'.format, PLACES))}"
        )
        raise ValueError(f"has the place {{{place[:40]}}}, which nothing fills: {meant}")
    if re.search(r"[{}]", _PLACE.sub("", value)):
        raise ValueError("has a brace without its other half: write places as {routing_key}")
    scheme, _, rest = value.partition("://")
    if "{" in scheme or "{" in re.split(r"[/?#\\]", rest, maxsplit=1)[0]:
        raise ValueError("would take its host from the event: write the host out, and places behind it")
    if len(value) > _LONGEST_ADDRESS:
        raise ValueError(f"must be at most {_LONGEST_ADDRESS} characters, has {len(value)}")
    endpoint(example_target(value))
    check_target(value)
    return value


def _texts(value: object, rule: str) -> tuple[str, ...]:
    """A text or a list of texts, none twice; ValueError with the rule for anything else."""
    found = value if isinstance(value, list) else [value]
    texts = tuple(each for each in found if isinstance(each, str))
    if not texts or len(texts) < len(found):
        raise ValueError(rule)
    if len(set(texts)) < len(texts):
        raise ValueError("has an entry twice: remove one")
    return texts
