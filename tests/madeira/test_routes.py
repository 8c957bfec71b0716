"""What jobs.toml says of routes, beside the rules that route by it: neither promises what the other does not keep."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from madeira import live
from madeira.configuration import parse
from madeira.routes import idle_sources, shadowed
from pipelines.route import BY_ROUTING_KEY, Route, Rules
from sinks.partner import Partner
from streams.errors import ConfigurationError
from streams.inbound import Inbound

NO_DEADLINE = hypothesis_settings(deadline=None)  # a busy machine is no fault
PARTNERS = {
    name: Partner(name=name, endpoint=f"https://{name.lower()}.example/in", qps=5, tenant=tenant)
    for name, tenant in (("AB", "default"), ("CD", "default"), ("NORTH", "north"))
}
TENANTS = st.sampled_from(("default", "north"))
SOURCES = {"shop": "default", "till": "default", "north": "north"}
VALUES = st.sampled_from(("AB", "CD", "NORTH", "../x", "a b", "@evil.example", "", "é"))


def some(*values: str, at_least: int = 0) -> st.SearchStrategy[tuple[str, ...]]:
    """Up to two of these values."""
    return st.lists(st.sampled_from(values), unique=True, min_size=at_least, max_size=2).map(tuple)


ROUTES = st.builds(
    Route,
    name=st.just("x"),
    to=some("AB", "CD", "NORTH", BY_ROUTING_KEY, at_least=1),
    tenant=TENANTS,
    sources=some(*SOURCES),
    event_types=some("payment.*", "*", "payment.created"),
    routing_keys=some("AB", "C*", "*"),
    tags=some("region", "env").map(lambda names: tuple((name, "sh") for name in names)),
)


@st.composite
def events(draw: st.DrawFn) -> Inbound:
    """Any event of one of the sources."""
    source = draw(st.sampled_from(sorted(SOURCES)))
    return Inbound(
        event_id="o-1",
        event_type=draw(st.sampled_from(("payment.created", "payment.x", "refund"))),
        source=source,
        tenant=SOURCES[source],
        payload=b"{}",
        body_sha256=b"x" * 32,
        trace_id="4bf92f3577b34da6a3ce929d0e0e4736",
        created_at=datetime(2026, 3, 2, 1, 15, tzinfo=UTC),
        routing_key=draw(VALUES),
        tags=draw(st.dictionaries(st.sampled_from(("region", "env")), st.sampled_from(("sh", "bj")))),
    )


@NO_DEADLINE
@given(earlier=ROUTES, later=ROUTES, event=events())
def test_a_route_that_is_said_never_to_decide_never_does(
    earlier: Route, later: Route, event: Inbound
) -> None:
    """Whatever event comes: it goes to the same partners without the later route's place for that one."""
    for route, name, _ in shadowed((earlier, later)):
        kept = tuple(each for each in route.to if each != name)
        without = Route(
            name=route.name, to=kept, tenant=route.tenant, sources=route.sources,
            event_types=route.event_types, routing_keys=route.routing_keys, tags=route.tags,
        )  # fmt: skip
        assert Rules((earlier, later), PARTNERS).route(event) == Rules((earlier, without), PARTNERS).route(
            event
        )


@NO_DEADLINE
@given(routes=st.lists(ROUTES, max_size=3), event=events())
def test_a_source_that_is_said_to_have_no_route_has_none(routes: list[Route], event: Inbound) -> None:
    """None of its events goes anywhere; an event that does is never one of such a source."""
    routed = Rules(routes, PARTNERS).route(event)
    if event.source in idle_sources(SOURCES, routes):
        assert (routed.deliveries, routed.problems) == ((), ())


HOSTS = (
    "ab.example",
    "AB.example",
    "alt.example",
    "alt.example:8443",
    "ab.example:443",
    "evil.example",
    "127.0.0.1",
)
PLACES = (
    "{routing_key}",
    "{event_id}",
    "{tags.region}",
    "{source}",
    "x",
    "%41",
    ":",
    "@",
    "..",
    "{",
    "{nothing}",
)


@NO_DEADLINE
@given(
    scheme=st.sampled_from(("https", "http", "ftp", "{source}")),
    host=st.sampled_from(HOSTS) | st.sampled_from(PLACES),
    rest=st.lists(st.sampled_from(("/", "?", "#", "//", "\\", *PLACES)), max_size=6).map("".join),
    event=events(),
)
def test_a_template_that_is_right_in_the_file_is_never_refused_for_its_host(
    scheme: str, host: str, rest: str, event: Inbound
) -> None:
    """Whatever an event puts into it; so a file that was verified sends, or names a value of the event."""
    uri = f"{scheme}://{host}{rest}".replace("\\", "\\\\")
    text = f"""
[partners.AB]
endpoint = "https://ab.example/payments"
qps = 50
allowed_hosts = ["alt.example:8443"]
[[routes]]
to = "AB"
target_uri = "{uri}"
"""
    try:
        read = parse(text, path="jobs.toml", folder=Path(), environ={})
    except ConfigurationError:
        return
    routed = Rules(read.routes, read.partners).route(event)
    assert [
        problem.why for problem in routed.problems if "host" in problem.why or "http" in problem.why
    ] == []


@NO_DEADLINE
@given(text=st.text(alphabet="abt.{}:/?#%@ \\*é", max_size=40))
def test_a_template_is_right_or_a_mistake(text: str) -> None:
    """No other exception, whatever somebody wrote; and what is right can be a rule."""
    for each in (text, f"https://ab.example/{text}"):
        try:
            checked = live.template(each)
        except ValueError:
            continue
        Rules((Route(name="x", to=("AB",), target_uri=checked),), PARTNERS)
