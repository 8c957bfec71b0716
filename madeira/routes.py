"""What is right about a route only beside the other tables: names, tenants, hosts, and routes before it.

Looks at the raw table, so that a mistake elsewhere in it hides nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import SplitResult, urlsplit

from madeira import live
from madeira.mistakes import Mistakes, Path, nearest
from pipelines.route import BY_ROUTING_KEY, Route, example_target
from sinks.address import target_refusal
from sinks.partner import Partner

DEFAULT_TENANT = "default"

_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True)
class Known:
    """What a route may name. Tables that have mistakes of their own are among it, but not in `complete`."""

    source_tenants: Mapping[str, str]
    partner_tenants: Mapping[str, str]
    jobs: frozenset[str]
    complete: Mapping[str, Partner]

    def partners_of(self, tenant: str) -> tuple[str, ...]:
        """The names of a tenant's partners."""
        return tuple(name for name, owner in self.partner_tenants.items() if owner == tenant)


def check_route(mistakes: Mistakes, path: Path, raw: Mapping[str, object], known: Known) -> None:
    """Add to `mistakes` what is wrong with the route at `path` beside the rest of the file."""
    tenant = tenant_of(raw)
    for name in _texts(raw.get("source")):
        if wrong := _wrong_source(name, tenant, known):
            mistakes.add((*path, "source"), wrong)
    recipients = _texts(raw.get("to"))
    for name in recipients:
        if wrong := _wrong_recipient(name, tenant, known):
            mistakes.add((*path, "to"), wrong)
    patterns = _texts(raw.get("routing_key"))
    if BY_ROUTING_KEY in recipients and known.partners_of(tenant):
        for pattern in patterns:
            if not any(_fits(pattern, name) for name in known.partners_of(tenant)):
                mistakes.add((*path, "routing_key"), _names_nobody(pattern, tenant, known))
    uri = raw.get("target_uri")
    if isinstance(uri, str):
        reached = tuple(_reached(recipients, patterns, tenant, known))
        for wrong in _wrong_hosts(uri, reached):
            mistakes.add((*path, "target_uri"), wrong)


def tenant_of(raw: object) -> str:
    """The tenant that a raw table of a source, partner or route names."""
    tenant = raw.get("tenant", DEFAULT_TENANT) if isinstance(raw, dict) else DEFAULT_TENANT
    return tenant if isinstance(tenant, str) else DEFAULT_TENANT


def idle_sources(tenants: Mapping[str, str], routes: Sequence[Route]) -> tuple[str, ...]:
    """Names of the sources whose events no route ever sees; `tenants` has the tenant of each source."""
    return tuple(
        name
        for name, tenant in tenants.items()
        if not any(
            route.tenant == tenant and (not route.sources or name in route.sources) for route in routes
        )
    )


def shadowed(routes: Sequence[Route]) -> Iterator[tuple[Route, str, Route]]:
    """A route, a partner in its `to`, and the earlier route that sends all its events there already."""
    for place, route in enumerate(routes):
        for name in route.to:
            for earlier in routes[:place]:
                if name in earlier.to and _covers(earlier, route):
                    yield route, name, earlier
                    break


def _wrong_source(name: str, tenant: str, known: Known) -> str | None:
    if name in known.source_tenants:
        owner = known.source_tenants[name]
        if owner == tenant:
            return None
        return f'has "{name}", a source of tenant {owner}: a route of tenant {tenant} never sees its events'
    if name in known.jobs:
        return f'has "{name}", which is a job: its rows go to the partner that they name, without routes'
    return f'has "{name[:80]}", which is no source: {nearest(name, known.source_tenants)}'


def _wrong_recipient(name: str, tenant: str, known: Known) -> str | None:
    own = known.partners_of(tenant)
    if name == BY_ROUTING_KEY:
        return None if own else f'has "{BY_ROUTING_KEY}", but tenant {tenant} has no partner: configure one'
    if name in known.partner_tenants:
        owner = known.partner_tenants[name]
        if owner == tenant:
            return None
        return f'has "{name}", a partner of tenant {owner}: a route of tenant {tenant} reaches its own only'
    return f'has "{name[:80]}", which is no partner: {nearest(name, own)}'


def _names_nobody(pattern: str, tenant: str, known: Known) -> str:
    return (
        f'has "{pattern[:80]}", and no partner of tenant {tenant} is called so, to whom '
        f"{BY_ROUTING_KEY} could send: {nearest(pattern, known.partners_of(tenant))}"
    )


def _reached(
    recipients: Sequence[str], patterns: Sequence[str], tenant: str, known: Known
) -> Iterator[Partner]:
    """The partners that the route can send to, each once, so far as their tables are right."""
    for name, partner in known.complete.items():
        named = BY_ROUTING_KEY in recipients and (
            not patterns or any(_fits(pattern, name) for pattern in patterns)
        )
        if partner.tenant == tenant and (name in recipients or named):
            yield partner


def _wrong_hosts(template: str, partners: Sequence[Partner]) -> Iterator[str]:
    try:
        live.template(template)
    except ValueError:
        return  # told by the table
    uri = example_target(template)
    refusing = [partner for partner in partners if target_refusal(uri, partner)]
    if not refusing:
        return
    first = f"partners.{refusing[0].name}"
    others = f" (and {len(refusing) - 1} more)" if len(refusing) > 1 else ""
    url = urlsplit(uri)
    if url.scheme == "http" and target_refusal(f"https{uri[4:]}", refusing[0]) is None:
        yield f"is http, which {first}{others} is not sent over: write https"
    else:
        host = _host(url)
        yield f'leads to {host}, where {first}{others} is not: write allowed_hosts = ["{host}"] there'


def _host(url: SplitResult) -> str:
    """Host and port as `allowed_hosts` has them: the port only where it is not the scheme's own."""
    host = url.hostname or ""
    shown = f"[{host}]" if ":" in host else host
    return shown if url.port in {None, _PORTS.get(url.scheme)} else f"{shown}:{url.port}"


def _covers(earlier: Route, later: Route) -> bool:
    """Whether each event that `later` takes is taken by `earlier`, so far as patterns are the same text."""
    conditions = (
        (earlier.sources, later.sources),
        (earlier.event_types, later.event_types),
        (earlier.routing_keys, later.routing_keys),
    )
    return (
        earlier.tenant == later.tenant
        and all(not wide or (narrow and set(narrow) <= set(wide)) for wide, narrow in conditions)
        and set(earlier.tags) <= set(later.tags)
    )


def _fits(pattern: str, text: str) -> bool:
    return re.fullmatch(".*".join(map(re.escape, pattern.split("*"))), text, re.DOTALL) is not None


def _texts(value: object) -> tuple[str, ...]:
    """A text, or the texts of a list; what else there is, the table tells."""
    found = value if isinstance(value, list) else [value]
    return tuple(each for each in found if isinstance(each, str))
