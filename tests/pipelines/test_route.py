"""Routing: who gets an event, with which bytes, at which address."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st
from yarl import URL

from pipelines.deliveries import Decided
from pipelines.route import (
    BY_ROUTING_KEY,
    Addressed,
    Problem,
    Route,
    Routed,
    Rules,
    check_body,
    check_target,
    example_target,
)
from sinks.partner import Partner
from streams.inbound import Inbound

NAMES = ("AB", "CD", "EF", "GH")
TENANTS = ("default", "north", "south")


def _event(**changes: object) -> Inbound:
    fields: dict[str, object] = {
        "event_id": "o-1",
        "event_type": "payment.created",
        "source": "shop",
        "tenant": "default",
        "payload": b'{ "amount": 0.10 }',
        "body_sha256": b"x" * 32,
        "trace_id": "4bf92f3577b34da6a3ce929d0e0e4736",
        "created_at": datetime(2026, 3, 2, 1, 15, tzinfo=UTC),
        **changes,
    }
    return Inbound(**fields)  # type: ignore[arg-type]


def _partners(**tenants: str) -> dict[str, Partner]:
    given_tenants = tenants or dict.fromkeys(NAMES, "default")
    return {
        name: Partner(name=name, endpoint=f"https://{name.lower()}.example/in", qps=5, tenant=tenant)
        for name, tenant in given_tenants.items()
    }


def _routed(event: Inbound, *routes: Route, partners: dict[str, Partner] | None = None) -> Routed:
    return Rules(routes, partners or _partners()).route(event)


@pytest.mark.parametrize(
    ("pattern", "text", "fits"),
    [
        ("payment.*", "payment.created", True),
        ("payment.*", "payment.", True),
        ("payment.*", "payment.card.created", True),
        ("payment.*", "payments", False),
        ("*", "", True),
        ("*.created", "payment.created", True),
        ("*.created", "payment.created.late", False),
        ("p*t.c*d", "payment.created", True),
        ("aba*ba", "aba", False),
        ("a*b*c", "a-c-b-c", True),
        ("a*b*c", "a-c-b", False),
        ("payment", "payment.created", False),
        ("payment.created", "payment-created", False),
        ("[ps]*", "payment", False),
        ("payment.?", "payment.x", False),
        ("a**b", "ab", True),
        ("a*\n*b", "a\n\nb", True),
    ],
)
def test_patterns(pattern: str, text: str, fits: bool) -> None:
    """`*` is any text, dots and nothing included; every other character means itself."""
    routed = _routed(_event(event_type=text), Route("r", ("AB",), event_types=(pattern,)))
    assert routed == Routed((Addressed("AB"),) if fits else (), ())


@given(st.lists(st.text("ab.[?", max_size=3)), st.lists(st.text("ab.[?", max_size=3)))
def test_a_pattern_fits_whatever_its_stars_stand_for(parts: list[str], fillings: list[str]) -> None:
    """Any text in place of each star makes a text that fits."""
    text = parts[0] if parts else ""
    for part, filling in zip(parts[1:], [*fillings, *[""] * len(parts)], strict=False):
        text += filling + part
    route = Route("r", ("AB",), routing_keys=("*".join(parts),))
    assert _routed(_event(routing_key=text), route).deliveries == (Addressed("AB"),)


def test_a_long_pattern_costs_no_more_than_its_length() -> None:
    """A pattern of many stars over a text that almost fits answers at once."""
    route = Route("r", ("AB",), routing_keys=("*a" * 100 + "b",))
    assert _routed(_event(routing_key="a" * 100_000), route).deliveries == ()


@pytest.mark.parametrize(
    ("condition", "event", "takes"),
    [
        ({"sources": ("shop", "till")}, {}, True),
        ({"sources": ("till",)}, {}, False),
        ({"tags": (("region", "sh"),)}, {"tags": {"region": "sh", "env": "x"}}, True),
        ({"tags": (("region", "sh"), ("env", "y"))}, {"tags": {"region": "sh", "env": "x"}}, False),
        ({"tags": (("region", "sh"),)}, {}, False),
        ({"routing_keys": ("A*", "B*")}, {"routing_key": "BX"}, True),
        ({"routing_keys": ("A*",)}, {}, False),
        ({"event_types": ("refund.*", "payment.*"), "routing_keys": ("A",)}, {"routing_key": "B"}, False),
        ({"tenant": "north"}, {}, False),
    ],
)
def test_conditions(condition: dict[str, object], event: dict[str, object], takes: bool) -> None:
    """A route takes an event where every condition that it has holds; within a list one is enough."""
    route = Route("r", ("AB",), **condition)  # type: ignore[arg-type]
    routed = _routed(_event(**event), route)
    assert [delivery.partner for delivery in routed.deliveries] == (["AB"] if takes else [])
    assert routed.problems == ()


def test_every_route_sends_and_a_partner_gets_it_once() -> None:
    """All routes that match send; the first that names a partner decides its body and its address."""
    routed = _routed(
        _event(routing_key="CD"),
        Route("first", ("AB", "AB"), body="{sum: amount}", target_uri="https://ab.example/{event_id}"),
        Route("second", ("AB", BY_ROUTING_KEY)),
        Route("third", ("CD", "EF"), body="amount"),
    )
    assert routed.problems == ()
    assert routed.deliveries == (
        Addressed("AB", "https://ab.example/o-1", b'{"sum":0.10}'),
        Addressed("CD"),
        Addressed("EF", "", b"0.10"),
    )


def test_a_route_that_cannot_send_leaves_the_partner_to_no_other() -> None:
    """Where the deciding route fails it is a problem, not another route's send with another body."""
    routed = _routed(_event(), Route("first", ("AB",), body="missing"), Route("second", ("AB", "CD")))
    assert routed.deliveries == (Addressed("CD"),)
    assert routed.problems == (Problem("first", "AB", "body: the expression finds nothing in this payload"),)


@pytest.mark.parametrize("payload", [b"<a/>", b"[" * 100_000, b'{"a":1,"a":2}', b"null"])
def test_what_cannot_be_reshaped_is_a_problem(payload: bytes) -> None:
    """No JSON, too deep, ambiguous or null: a problem for each partner of the route, and the others get the bytes."""
    routed = _routed(_event(payload=payload), Route("r", ("AB", "CD"), body="@"), Route("s", ("EF",)))
    assert [(problem.route, problem.partner) for problem in routed.problems] == [("r", "AB"), ("r", "CD")]
    assert routed.deliveries == (Addressed("EF"),)


@given(st.binary())
def test_bytes_go_through_untouched(payload: bytes) -> None:
    """Without a reshape the envelope holds the very bytes object that came."""
    event = _event(payload=payload)
    (addressed,) = _routed(event, Route("r", ("AB",))).deliveries
    assert event.to_partner("AB", payload=addressed.body).payload is payload


@pytest.mark.parametrize(
    ("key", "words"),
    [
        ("", "route r: the event has no routing_key"),
        ("ZZ", "route r, ZZ: no partner ZZ in tenant default"),
    ],
)
def test_a_routing_key_that_names_nobody(key: str, words: str) -> None:
    """It is a problem that says what was looked for."""
    event = _event(routing_key=key)
    routed = _routed(event, Route("r", (BY_ROUTING_KEY,)))
    assert routed.deliveries == ()
    assert Decided(1, event, routed).reason == words


def test_another_tenants_partner_sounds_like_none() -> None:
    """A partner of another tenant is answered in the words for one that does not exist."""
    partners = _partners(AB="north", CD="default")
    there, nowhere = (
        _routed(_event(routing_key=name), Route("r", (BY_ROUTING_KEY,)), partners=partners)
        for name in ("AB", "ZZ")
    )
    assert there.deliveries == nowhere.deliveries == ()
    assert there.problems[0].why.replace("AB", "ZZ") == nowhere.problems[0].why


tenants = st.sampled_from(TENANTS)
routes = st.builds(
    Route,
    name=st.just("r"),
    to=st.lists(st.sampled_from([*NAMES, BY_ROUTING_KEY]), min_size=1).map(tuple),
    tenant=tenants,
    event_types=st.sampled_from([(), ("payment.*",), ("*",)]),
    target_uri=st.sampled_from([None, "https://ab.example/{routing_key}"]),
)


@given(
    st.lists(routes, max_size=6),
    st.fixed_dictionaries(dict.fromkeys(NAMES, tenants)),
    tenants,
    st.sampled_from([*NAMES, "", "..", "ZZ"]),
    st.sampled_from(["", "https://ab.example/x", "https://cd.example/x", "https://evil.example/x"]),
)
def test_no_event_reaches_another_tenant(
    rules: list[Route], owners: dict[str, str], tenant: str, routing_key: str, target_uri: str
) -> None:
    """Whatever the routes say: partners and hosts are of the event's own tenant, and none is named twice."""
    partners = _partners(**owners)
    event = _event(tenant=tenant, routing_key=routing_key, target_uri=target_uri)
    routed = _routed(event, *rules, partners=partners)
    for delivery in routed.deliveries:
        assert owners[delivery.partner] == tenant
        uri = delivery.target_uri or partners[delivery.partner].endpoint
        assert urlsplit(uri).hostname == f"{delivery.partner.lower()}.example"
    names = [reached.partner for reached in (*routed.deliveries, *routed.problems)]
    assert len(names) == len(set(names))


TEMPLATES = (
    "https://ab.example/pay/{routing_key}",
    "https://ab.example/{routing_key}/{tags.region}?k={event_id}&r={routing_key}",
    "https://ab.example:443/a.{routing_key}",
    "https://ab.example?{routing_key}",
    "https://ab.example/{routing_key}{tags.region}",
)
nasty = st.text(min_size=1, max_size=12) | st.text(
    "./\\?#@:%2eEfF\r\n\0 ;&=\u2025\uff0e", min_size=1, max_size=6
)


@given(st.sampled_from(TEMPLATES), nasty, nasty)
def test_a_value_stays_where_the_template_puts_it(template: str, routing_key: str, region: str) -> None:
    """Whatever an event holds, host, number of segments and of query fields are the template's; the value can be
    read back; a segment that would mean another one is refused."""
    event = _event(routing_key=routing_key, tags={"region": region})
    routed = _routed(event, Route("r", ("AB",), target_uri=template))
    if not routed.deliveries:
        assert "leave its place" in routed.problems[0].why or "is not text" in routed.problems[0].why
        return
    uri, example = routed.deliveries[0].target_uri, example_target(template)
    for parsed in (URL(uri, encoded=True), URL(uri)):
        assert (parsed.scheme, parsed.raw_host, parsed.port) == ("https", "ab.example", 443)
    assert uri.isascii()
    assert uri.isprintable()
    assert " " not in uri
    assert uri.count("/") == example.count("/")
    assert uri.count("?") == example.count("?")
    assert uri.count("&") == example.count("&")
    assert "#" not in uri
    assert not {".", ".."} & {unquote(segment) for segment in urlsplit(uri).path.split("/")}
    assert routing_key in unquote(uri)


@pytest.mark.parametrize(
    ("template", "routing_key"),
    [
        ("https://ab.example/a/{routing_key}", ".."),
        ("https://ab.example/a/{routing_key}/b", "."),
        ("https://ab.example/a/{routing_key}?x", ".."),
        ("https://ab.example/a/.{routing_key}", "."),
        ("https://ab.example/a/{routing_key}{tags.dot}", "."),
    ],
)
def test_dots_are_no_segment(template: str, routing_key: str) -> None:
    """A value that makes a step up the path is refused, alone and completed by what stands beside it."""
    event = _event(routing_key=routing_key, tags={"dot": "."})
    routed = _routed(event, Route("r", ("AB",), target_uri=template))
    why = "target_uri: a value would leave its place in the path"
    assert routed == Routed((), (Problem("r", "AB", why),))


@pytest.mark.parametrize("field", ["routing_key", "tags.region"])
def test_a_value_that_is_missing_is_a_problem(field: str) -> None:
    """An address with a hole in it is another address: it is not sent to."""
    routed = _routed(_event(), Route("r", ("AB",), target_uri=f"https://ab.example/{{{field}}}/x"))
    assert routed.problems == (Problem("r", "AB", f"target_uri: the event has no {field}"),)


def test_the_order_of_addresses() -> None:
    """A route's template comes before the event's own address, that before the endpoint."""
    event = _event(target_uri="https://ab.example/own")
    with_template = Route("r", ("AB",), target_uri="https://ab.example/{event_id}")
    assert _routed(event, with_template).deliveries[0].target_uri == "https://ab.example/o-1"
    assert _routed(event, Route("r", ("AB",))).deliveries[0].target_uri == "https://ab.example/own"
    assert _routed(_event(), Route("r", ("AB",))).deliveries[0].target_uri == ""


def test_an_address_of_another_host_is_a_problem_for_that_partner_only() -> None:
    """The event's address is asked of each partner; where the host isn't the partner's nothing is sent elsewhere."""
    routed = _routed(_event(target_uri="https://ab.example/own"), Route("r", ("AB", "CD")))
    assert routed.deliveries == (Addressed("AB", "https://ab.example/own"),)
    assert [(problem.partner, "allowed_hosts" in problem.why) for problem in routed.problems] == [
        ("CD", True)
    ]


@pytest.mark.parametrize(
    ("template", "why"),
    [
        ("https://{routing_key}/x", "never chooses the host"),
        ("https://{routing_key}.example/x", "never chooses the host"),
        ("https://ab.example{routing_key}/x", "never chooses the host"),
        ("https://ab.example:{routing_key}/x", "never chooses the host"),
        ("{routing_key}", "never chooses the host"),
        ("{routing_key}://ab.example/", "never chooses the host"),
        ("//ab.example/{routing_key}", "never chooses the host"),
        ("https://ab.example/{amount}", "none of"),
        ("https://ab.example/{}", "none of"),
        ("https://ab.example/{tags.}", "none of"),
        ("https://ab.example/{routing_key!r}", "none of"),
        ("https://ab.example/{routing_key", "brace"),
        ("https://ab.example/{{routing_key}}", "brace"),
        ("https://ab.example/#{routing_key}", "#"),
        ("https://ab.example/../{routing_key}", "segment"),
        ("https://ab.example/%2E./{routing_key}", "segment"),
        ("ftp://ab.example/x", "http"),
        ("https://user@ab.example/x", "user"),
        ("https://ab.example/a b", "percent"),
    ],
)
def test_a_template_is_checked_beforehand(template: str, why: str) -> None:
    """What could never be a safe address is a mistake of the route."""
    with pytest.raises(ValueError, match=why):
        check_target(template)
    with pytest.raises(ValueError, match=why):
        Rules([Route("r", ("AB",), target_uri=template)], {})


def test_checks_pass_what_works() -> None:
    """The checks for jobs.toml take what the rules take."""
    for template in (*TEMPLATES, "https://ab.example/plain"):
        check_target(template)
    check_body("{amount: amount}")
    with pytest.raises(ValueError, match="calculates"):
        check_body("sum(a)")


def test_every_reason_can_be_looked_up() -> None:
    """docs/errors.md has what each problem says, so that whoever reads one finds what to do."""
    root = Path(__file__).parents[2]
    page = (root / "docs" / "errors.md").read_text(encoding="utf-8")
    section = page.partition("## Unroutable events")[2].partition("\n## ")[0]
    code = "".join(
        (root / "pipelines" / f"{name}.py").read_text(encoding="utf-8") for name in ("route", "reshape")
    )
    reasons = re.findall(r'Unfit\(\s*f?"([^"]+)"', code)
    assert len(reasons) >= 9
    pieces = [
        piece.removeprefix("body: the payload ")
        for reason in reasons
        for piece in re.split(r"{[^}]*}", reason)
    ]
    missing = [
        piece for piece in pieces if piece.strip(" :").removeprefix("body: the expression ") not in section
    ]
    assert missing == []
