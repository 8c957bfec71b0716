"""Routing: which partners an event goes to, with which body and to which address. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

BY_ROUTING_KEY: Final = "{routing_key}"
"""In `Route.to`: the partner that the event's routing key names."""


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
