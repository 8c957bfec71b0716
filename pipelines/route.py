"""Routing: which partners an event goes to, with which body and to which address. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote

from pipelines.reshape import Reshape, Unfit
from sinks.address import check_endpoint, target_refusal
from sinks.partner import Partner
from streams.inbound import Inbound

BY_ROUTING_KEY: Final = "{routing_key}"
"""In `Route.to`: the partner that the event's routing key names."""

_BEFORE_PATH: Final = re.compile(r"https?://[^/?#{}\\]+[/?]", re.IGNORECASE)
_PLACEHOLDER: Final = re.compile(r"\{([^{}]*)\}")
_FIELDS: Final = frozenset({"routing_key", "event_id", "event_type", "source"})
_DOTS: Final = re.compile(r"(?:\.|%2e){1,2}", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Route:
    """One `[[routes]]`. An empty condition holds for every event of the tenant; all that are given must hold.

    `event_types` and `routing_keys` are patterns in which `*` stands for any text. `to` are names of partners
    of the same tenant, or `BY_ROUTING_KEY`. `body` is a JMESPath expression over the payload, `target_uri` a template
    with `{routing_key}`, `{event_id}`, `{event_type}`, `{source}` and `{tags.NAME}`, percent-encoded when filled in.
    """

    name: str
    to: tuple[str, ...]
    tenant: str = "default"
    sources: tuple[str, ...] = ()
    event_types: tuple[str, ...] = ()
    routing_keys: tuple[str, ...] = ()
    tags: tuple[tuple[str, str], ...] = ()
    body: str | None = None
    target_uri: str | None = None


@dataclass(frozen=True, slots=True)
class Addressed:
    """The event goes to `partner`: with `body`, None where its payload goes as it came (the very bytes), and to
    `target_uri`, empty where that is the partner's endpoint."""

    partner: str
    target_uri: str = ""
    body: bytes | None = None


@dataclass(frozen=True, slots=True)
class Problem:
    """A route took the event and cannot send it to `partner`; `why` is one short line."""

    route: str
    partner: str
    why: str


@dataclass(frozen=True, slots=True)
class Routed:
    """What the rules say of one event. With neither a delivery nor a problem no route took it."""

    deliveries: tuple[Addressed, ...]
    problems: tuple[Problem, ...]


class Rules:
    """All routes, compiled once; made anew when the configuration changes.

    Raises `ValueError` for a body or template that `check_body` or `check_target` refuses.
    """

    __slots__ = ("_partners", "_reshaping", "_rules")

    def __init__(self, routes: Sequence[Route], partners: Mapping[str, Partner]) -> None:
        self._partners = dict(partners)
        self._rules = tuple(_Rule(route) for route in routes)
        self._reshaping = tuple(rule for rule in self._rules if rule.route.body is not None)

    def route(self, event: Inbound) -> Routed:
        """Every partner that a matching route names, once: the first route that names it decides body and address,
        also where it cannot send, which is a problem and never an empty or another send."""
        deliveries: dict[str, Addressed] = {}
        problems: dict[str, Problem] = {}
        for rule in self._rules:
            if not rule.takes(event):
                continue
            body = rule.body(event)
            for to in rule.route.to:
                name = event.routing_key if to == BY_ROUTING_KEY else to
                if name in deliveries or name in problems:
                    continue
                addressed = self._address(event, name, rule, body)
                if isinstance(addressed, Unfit):
                    problems[name] = Problem(rule.route.name, name, addressed.why)
                else:
                    deliveries[name] = addressed
        return Routed(tuple(deliveries.values()), tuple(problems.values()))

    def reshapes(self, event: Inbound) -> bool:
        """Whether a matching route makes another body, which takes time by the size of the payload."""
        return any(rule.takes(event) for rule in self._reshaping)

    def _address(
        self, event: Inbound, name: str, rule: _Rule, body: bytes | Unfit | None
    ) -> Addressed | Unfit:
        if not name:
            return Unfit("the event has no routing_key")
        partner = self._partners.get(name)
        # The same words for one that is there: a tenant does not learn what another has.
        if partner is None or partner.tenant != event.tenant:
            return Unfit(f"no partner {name[:64]} in tenant {event.tenant}")
        if isinstance(body, Unfit):
            return body
        target_uri = rule.target_uri(event)
        if isinstance(target_uri, Unfit):
            return target_uri
        if target_uri and (why := target_refusal(target_uri, partner)):
            return Unfit(why)
        return Addressed(name, target_uri, body)


def check_body(expression: str) -> None:
    """Raises `ValueError`, saying what is wrong, unless `expression` can be a route's `body`."""
    Reshape(expression)


def check_target(template: str) -> None:
    """Raises `ValueError`, saying what is wrong, unless `template` can be a route's `target_uri`."""
    _Template(template)


def example_target(template: str) -> str:
    """A checked template filled with an x for each value: its host is that of every address it makes."""
    return _PLACEHOLDER.sub("x", template)


class _Rule:
    """One route, ready to be asked."""

    __slots__ = ("_event_types", "_reshape", "_routing_keys", "_sources", "_template", "route")

    def __init__(self, route: Route) -> None:
        self.route = route
        self._sources = frozenset(route.sources)
        self._event_types = tuple(pattern.split("*") for pattern in route.event_types)
        self._routing_keys = tuple(pattern.split("*") for pattern in route.routing_keys)
        self._reshape = None if route.body is None else Reshape(route.body)
        self._template = None if route.target_uri is None else _Template(route.target_uri)

    def takes(self, event: Inbound) -> bool:
        """Whether all conditions hold."""
        return (
            event.tenant == self.route.tenant
            and (not self._sources or event.source in self._sources)
            and (not self._event_types or any(_fits(parts, event.event_type) for parts in self._event_types))
            and (
                not self._routing_keys or any(_fits(parts, event.routing_key) for parts in self._routing_keys)
            )
            and all(event.tags.get(name) == value for name, value in self.route.tags)
        )

    def body(self, event: Inbound) -> bytes | Unfit | None:
        """What the route makes of the payload; None: it stays as it is."""
        return None if self._reshape is None else self._reshape(event.payload)

    def target_uri(self, event: Inbound) -> str | Unfit:
        """The route's address before the event's own; empty for neither."""
        return event.target_uri if self._template is None else self._template.filled(event)


def _fits(parts: list[str], text: str) -> bool:
    """Whether `text` is the parts of a pattern in their order, with anything in between; in linear time."""
    if len(parts) == 1:
        return text == parts[0]
    at, end = len(parts[0]), len(text) - len(parts[-1])
    if at > end or not text.startswith(parts[0]) or not text.endswith(parts[-1]):
        return False
    for part in parts[1:-1]:
        found = text.find(part, at, end)
        if found < 0:
            return False
        at = found + len(part)
    return True


class _Template:
    """A `target_uri` whose values stay where they are put: behind the host, and within one segment of the path."""

    __slots__ = ("_pieces",)

    def __init__(self, template: str) -> None:
        self._pieces = tuple(_PLACEHOLDER.split(template))  # text, name, text, name, text
        for name in self._pieces[1::2]:
            if name not in _FIELDS and not (name.startswith("tags.") and len(name) > 5):
                known = ", ".join(f"{{{field}}}" for field in sorted(_FIELDS))
                raise ValueError(f"has {{{name}}}, which is none of {known} and {{tags.NAME}}")
        texts = self._pieces[::2]
        if any("{" in text or "}" in text for text in texts):
            raise ValueError("has a brace without its other half")
        if any("#" in text for text in texts):
            raise ValueError("must not hold a #: that part of an address is never sent")
        if len(texts) > 1 and not _BEFORE_PATH.match(texts[0]):
            raise ValueError(
                "must have scheme, host and a / before the first {…}: a value never chooses the host"
            )
        example = example_target(template)
        check_endpoint(example)
        if _leaves(example):
            raise ValueError("must not hold . or .. as a segment of the path")

    def filled(self, event: Inbound) -> str | Unfit:
        """The address for one event."""
        filled = [self._pieces[0]]
        for name, text in zip(self._pieces[1::2], self._pieces[2::2], strict=True):
            value = _value(event, name)
            if not value:
                return Unfit(f"target_uri: the event has no {name}")
            try:
                filled += quote(value, safe=""), text
            except UnicodeEncodeError:
                return Unfit(f"target_uri: {name} is not text")
        target_uri = "".join(filled)
        return (
            Unfit("target_uri: a value would leave its place in the path")
            if _leaves(target_uri)
            else target_uri
        )


def _value(event: Inbound, name: str) -> str:
    match name:
        case "routing_key":
            return event.routing_key
        case "event_id":
            return event.event_id
        case "event_type":
            return event.event_type
        case "source":
            return event.source
        case _:
            return event.tags.get(name.removeprefix("tags."), "")


def _leaves(uri: str) -> bool:
    """Whether the path has a segment that means another one (RFC 3986, 5.2.4)."""
    return any(_DOTS.fullmatch(segment) for segment in _segments(uri))


def _segments(uri: str) -> Iterator[str]:
    yield from uri.partition("?")[0].split("/")[3:]
