"""The environment and jobs.toml: what is read, and what is said of mistakes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import time, timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from madeira.configuration import Configuration, parse
from madeira.mistakes import lines_of
from madeira.running import require_ready
from madeira.settings import ENVIRONMENT, Settings, load
from madeira.tables import JobTable, LiveSourceTable, PartnerTable, RouteTable, SourceTable
from madeira.values import duration, listen_address, shown_duration
from pipelines.live_source import Durability, LiveSource
from pipelines.route import Route
from scheduler.calendar import Calendar
from sinks.partner import Partner, SignatureScheme
from streams.errors import ConfigurationError

NO_DEADLINE = hypothesis_settings(deadline=None)  # a busy machine is no fault
ROOT = Path(__file__).parents[2]
SMALL = """
[[jobs]]
id = "payment-orders"
start = "01:15"
timezone = "Europe/Prague"
source = { dsn_env = "ACCOUNTING_DSN", query_file = "q.sql" }
event_id = ["order_id", "business_date"]
partner = "bank_to"

[partners.AB]
endpoint = "https://ab.example/payments"
qps = 50
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with one query in it."""
    (tmp_path / "q.sql").write_text("SELECT order_id, bank_to FROM payment_orders")
    return tmp_path


def read(text: str, folder: Path, environ: Mapping[str, str] | None = None) -> Configuration:
    """The configuration of a text that has no mistake."""
    return parse(text, path="jobs.toml", folder=folder, environ=environ or {})


def mistakes(text: str, folder: Path, environ: Mapping[str, str] | None = None) -> tuple[str, ...]:
    """What is said of a text that has mistakes."""
    with pytest.raises(ConfigurationError) as raised:
        read(text, folder, environ)
    return raised.value.mistakes


def test_a_smallest_file_is_enough(folder: Path) -> None:
    """Six keys of a job and two of a partner; everything else has a default."""
    configuration = read(SMALL, folder, {"ACCOUNTING_DSN": "postgresql://source"})
    (scheduled,) = configuration.jobs
    job, schedule = scheduled.job, scheduled.schedule
    assert (job.id, job.dsn, job.dsn_env) == ("payment-orders", "postgresql://source", "ACCOUNTING_DSN")
    assert (job.partner, job.partner_is_column, job.partners) == ("bank_to", True, frozenset({"AB"}))
    assert (job.event_id, job.event_type) == (("order_id", "business_date"), "payment-orders")
    assert job.query.startswith("SELECT order_id")
    assert (schedule.start, schedule.timezone.key, schedule.calendar) == (
        time(1, 15),
        "Europe/Prague",
        Calendar.ALL,
    )
    assert configuration.partners["AB"] == Partner(name="AB", endpoint="https://ab.example/payments", qps=50)
    assert configuration.unset_secrets == ()


def test_every_key_of_a_partner_arrives(folder: Path) -> None:
    """Durations in their units, keys and headers from the environment, the rest as written."""
    text = (
        SMALL
        + """
tenant = "north"
signing_key_env = ["AB_NEW", "AB_OLD"]
signature = "standard-webhooks"
success = "ok"
retry_codes = ["TRY_LATER"]
already_accepted = ["DUPLICATE"]
timeout = 5
guard = "20ms"
lateness = "10ms"
levels = ["3s", 6, "1m"]
max_attempts = 4
max_age = "2d"
unknown_retries = 0
max_in_flight = 7
batch_floor_percent = 30
idempotent = true
allow_private = true
headers = { "X-Client" = "madeira", Authorization = { env = "AB_TOKEN" } }
"""
    )
    environ = {"ACCOUNTING_DSN": "x", "AB_NEW": "new", "AB_OLD": "old", "AB_TOKEN": "Bearer t"}
    assert read(text, folder, environ).partners["AB"] == Partner(
        name="AB",
        endpoint="https://ab.example/payments",
        qps=50,
        tenant="north",
        signing_keys=(b"new", b"old"),
        signature=SignatureScheme.STANDARD_WEBHOOKS,
        success="ok",
        retry_codes=frozenset({"TRY_LATER"}),
        already_accepted=frozenset({"DUPLICATE"}),
        timeout=timedelta(seconds=5),
        guard=timedelta(milliseconds=20),
        lateness=timedelta(milliseconds=10),
        levels=(timedelta(seconds=3), timedelta(seconds=6), timedelta(minutes=1)),
        max_attempts=4,
        max_age=timedelta(days=2),
        unknown_retries=0,
        max_in_flight=7,
        batch_floor_percent=30,
        allow_private=True,
        headers=(("X-Client", "madeira"), ("Authorization", "Bearer t")),
    )


def test_a_fixed_partner_and_a_column_are_told_apart(folder: Path) -> None:
    """A configured name is a partner, anything that could be a column is one; the same for currencies."""
    money = 'amount = "amount"\ncurrency = "{}"\n[partners.AB]'
    money = 'event_type = "payment.created"\n' + money
    fixed = SMALL.replace('"bank_to"', '"AB"').replace("[partners.AB]", money.format("CZK"))
    column = SMALL.replace("[partners.AB]", money.format("currency_code"))
    first, second = read(fixed, folder).jobs[0].job, read(column, folder).jobs[0].job
    assert first.event_type == "payment.created"
    assert (first.partner_is_column, first.currency_is_column) == (False, False)
    assert (second.partner_is_column, second.currency_is_column) == (True, True)


def test_secrets_that_are_not_set_are_warnings_and_name_who_needs_them(folder: Path) -> None:
    """The partner must not be sent to; the file is right nevertheless."""
    text = SMALL + 'signing_key_env = "AB_KEY"\n[partners.CD]\nendpoint = "https://cd.example"\nqps = 1\n'
    configuration = read(text, folder, {"AB_KEY": ""})
    assert configuration.unready_partners == {"AB": ("AB_KEY",)}
    assert len(configuration.unset_secrets) == 2
    assert any(
        "AB_KEY is not set (for partners.AB.signing_key_env)" in line for line in configuration.unset_secrets
    )
    assert any("ACCOUNTING_DSN is not set" in line for line in configuration.unset_secrets)


def test_a_worker_says_which_variables_a_partner_lacks(folder: Path) -> None:
    """All of the partner's that are not set, also where more partners need the same one than a warning lists."""
    names = ("AB", "CD", "EF", "GH", "IJ")
    text = "".join(
        f'[partners.{name}]\nendpoint = "https://b.example"\nqps = 1\nsigning_key_env = ["KEY", "OLD_KEY"]\n'
        'headers = { Authorization = { env = "TOKEN" } }\n'
        for name in names
    )
    (folder / "jobs.toml").write_text(text)
    settings = load({"MADEIRA_CONFIG": str(folder / "jobs.toml"), "OLD_KEY": "old"})
    with pytest.raises(ConfigurationError) as refused:
        require_ready(settings)
    assert all(f"partners.{name} needs KEY, TOKEN, not set here" in str(refused.value) for name in names)


def test_no_secret_is_ever_shown(folder: Path) -> None:
    """Neither in what settings look like, nor in what is said of mistakes, wherever a secret was put by mistake."""
    text = SMALL + 'signing_key_env = "AB_KEY"\nheaders = { Authorization = { env = "AB_TOKEN" } }\n'
    environ = {"ACCOUNTING_DSN": "postgresql://hunter2", "AB_KEY": "hunter2", "AB_TOKEN": "hunter2"}
    assert "hunter2" not in repr(read(text, folder, environ))
    bad = SMALL.replace("https://ab.example", "https://u:hunter2@ab.example").replace(
        "ACCOUNTING_DSN", "postgresql://u:hunter2@h/d"
    )
    bad += 'signing_key = "hunter2"\nsigning_key_env = "hunter2!"\nheaders = { Authorization = "hunter2" }\n'
    said = mistakes(bad, folder)
    assert len(said) == 5
    assert "hunter2" not in "".join(said)
    environ = {"AB_KEY": "whsec_hunter2!", "AB_TOKEN": "hunter2\n"}
    said = mistakes(text, folder, environ)
    assert len(said) == 2
    assert "hunter2" not in "".join(said)
    urls = {"MADEIRA_DATABASE_URL": "mysql://u:hunter2@h/d", "MADEIRA_REDIS_URL": "http://:hunter2@h:x"}
    with pytest.raises(ConfigurationError) as raised:
        load(urls | {"MADEIRA_CONFIG": str(ROOT / "jobs.toml")})
    assert len(raised.value.mistakes) == 2
    assert "hunter2" not in str(raised.value)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("qps = 50", "qps = 0", "jobs.toml:12: partners.AB.qps must be above 0, is 0"),
        ("qps = 50", "qps = -1", "must be above 0, is -1"),
        ("qps = 50", "qps = 0.5", "must be a whole number, is 0.5: write qps = 50"),
        ("qps = 50", 'qps = "50"', 'must be a whole number, is "50": write qps = 50'),
        ("qps = 50", "qps = true", "must be a whole number, is true"),
        ("qps = 50", "qsp = 50", "partners.AB.qsp is no key here: did you mean qps?"),
        ("qps = 50", "", "partners.AB.qps is missing: write qps = 50"),
        ("qps = 50", "qps = 50\nsigning_key = 'x'", "name an environment variable with signing_key_env"),
        ("qps = 50", "qps = 50\nsecret = 'x'", "name an environment variable with signing_key_env"),
        ("qps = 50", "qps = 50\nidempotent = false", "partners.AB.idempotent = false comes later"),
        ("qps = 50", "qps = 50\nlevels = ['2m', '1m']", "must rise from each to the next"),
        ("qps = 50", "qps = 50\nlevels = ['1m', '1m']", "must rise from each to the next"),
        ("qps = 50", "qps = 50\nlevels = ['0s']", "must be whole seconds above 0, has 0ms"),
        ("qps = 50", "qps = 50\nlevels = ['1500ms']", "must be whole seconds above 0, has 1500ms"),
        ("qps = 50", "qps = 50\nlevels = []", "must be a list of waits"),
        ("qps = 50", "qps = 50\nretry_when = 'nonsense('", "must be a JMESPath expression, like status == `423`"),
        ("qps = 50", "qps = 50\nretry_after_max = '0s'", 'must be "1s" to "7d", is 0ms'),
        ("qps = 50", "qps = 50\nbreaker_failures = -1", "breaker_failures must be at least 0, is -1"),
        ("qps = 50", "qps = 50\nbreaker_probe = '2m'", "must not be below breaker_probe (2m), is 1m"),
        ("qps = 50", "qps = 50\ntimeout = '20'", 'must be a duration like "20s"'),
        ("qps = 50", "qps = 50\ntimeout = '1h'", 'must be "100ms" to "10m", is 1h'),
        ("qps = 50", "qps = 50\nguard = 15", 'must be "1ms" to "500ms", is 15s'),
        ("qps = 50", "qps = 50\nguard = '8ms'", "partners.AB.lateness must be below guard (8ms), is 8ms"),
        ("qps = 50", "qps = 50\nmax_attempts = 0", "max_attempts must be above 0, is 0"),
        ("qps = 50", "qps = 50\nbatch_floor_percent = 101", "must be at most 100, is 101"),
        ("qps = 50", "qps = 50\nsuccess = 'a['", "must be a JMESPath expression"),
        ("qps = 50", "qps = 50\nsuccess = ''", "must be a JMESPath expression"),
        ("qps = 50", "qps = 50\nsuccess = 'startswith(a, b)'", "did you mean starts_with?"),
        ("qps = 50", "qps = 50\nsignature = 'hmac'", "must be 'madeira' or 'standard-webhooks'"),
        ("qps = 50", "qps = 50\nretry_codes = [1]", "must be text in quotes, is 1"),
        ("qps = 50", "qps = 50\nheaders = { 'Madeira-Signature' = 'x' }", "which Madeira sets itself"),
        ("qps = 50", 'qps = 50\nheaders = { X = "a\\r\\nb" }', "must be printable ASCII"),
        ("qps = 50", 'qps = 50\nheaders = { "X Y" = "a" }', "no name for a header"),
        ("[partners.AB]", '[partners."A B"]', "must have a name of 1 to 64 letters"),
        ("https://ab.example/payments", "ftp://ab.example", "must begin with https:// or http://"),
        ("https://ab.example/payments", "https:///payments", "must begin with https:// or http://"),
        ("https://ab.example/payments", "https://ab.example:99999/", "valid host and port"),
        ("https://ab.example/payments", "https://u:p@ab.example/", "must not contain credentials"),
        ("https://ab.example/payments", "https://ab.example/a b", "percent-encode"),
        ("https://ab.example/payments", "http://127.0.0.1/", "loopback address (127.0.0.1): write allow_private"),
        ("https://ab.example/payments", "http://localhost/", "loopback address (localhost): write allow_private"),
        ("https://ab.example/payments", "http://169.254.169.254/", "use another, this one is never sent to"),
        ('"01:15"', '"1:15"', 'must be a local time from "00:00" to "23:59"'),
        ('"01:15"', '"24:00"', 'must be a local time from "00:00" to "23:59"'),
        ('"01:15"', "01:15:00", 'must be a local time from "00:00" to "23:59" in quotes'),
        ('"01:15"', '"01:15"\ncalendar = "1-5"', "must not be weekday numbers"),
        ('"01:15"', '"01:15"\ncalendar = [1, 2]', "must not be weekday numbers"),
        ('"01:15"', '"01:15"\ncalendar = 0', "must not be weekday numbers"),
        ('"01:15"', '"01:15"\ncalendar = "weekday"', "must be 'all' or 'weekdays', is \"weekday\""),
        ('"01:15"', '"01:15"\nweekdays = [0]', 'is no key here: write calendar = "weekdays"'),
        ('"Europe/Prague"', '"Europe/Praha"', 'did you mean "Europe/Prague"?'),
        ('"Europe/Prague"', '"../../etc/passwd"', "must be a zone"),
        ('"Europe/Prague"', '"Europe"', "must be a zone"),
        ('"Europe/Prague"', '""', "must be a zone"),
        ('"Europe/Prague"', '"localtime"', "must be a zone"),
        ('"Europe/Prague"', "1", "must be a zone"),
        ('"q.sql"', '"qq.sql"', "did you mean q.sql?"),
        ('"q.sql"', '"other/x.sql"', "names a file that is not there"),
        ('"q.sql"', '"."', "cannot be read"),
        ('"ACCOUNTING_DSN"', '"accounting"', "must be the name of an environment variable in capitals"),
        ('"payment-orders"', '"payment orders"', "must be 1 to 64 letters, digits, _ or -"),
        ('"payment-orders"', '"replay"', "is the job of what madeira dead replay sends"),
        ('["order_id", "business_date"]', "[]", "must be a column or a list of columns"),
        ('["order_id", "business_date"]', '["a", "a"]', "names a column twice"),
        ('["order_id", "business_date"]', '["business_date"]', "must have a column besides business_date"),
        ('"bank_to"', '"bank-to"', "must be a configured partner or a column, is 'bank-to': there are AB"),
        ('"bank_to"', '"ab"', "did you mean the partner AB?"),
        ('"bank_to"', '"bank_to"\namount = "a"', "jobs.payment-orders.amount needs currency beside it"),
        ('"bank_to"', '"bank_to"\ncurrency = "CZK"', "needs amount beside it"),
        ('"bank_to"', '"bank_to"\namount = "a"\ncurrency = "CZQ"', "must be an ISO 4217 code"),
        ('"bank_to"', '"bank_to"\namount = "a"\ncurrency = "czk"', 'is "czk": write "CZK"'),
        ('"bank_to"', '"bank_to"\namount = "a"\ncurrency = "XAU"', "must be an ISO 4217 code"),
        ("[[jobs]]", "[jobs]", "jobs must be an array of tables: write [[jobs]] with two brackets"),
        ("[[jobs]]", "[[job]]", "job is no key here: did you mean jobs?"),
        ("[[jobs]]", "[source.x]\nkey_env = 'X'\n[[jobs]]", "source is no key here: did you mean sources?"),
        ("qps = 50", "qps = 50\nallowed_hosts = 'alt.example/x'", "write each as host or host:port"),
        ("qps = 50", "qps = 50\nallowed_hosts = ['https://alt.example']", "without https:// and path"),
        ("qps = 50", "qps = 50\nallowed_hosts = ['alt.example:0']", "has 'alt.example:0'"),
        ("qps = 50", "qps = 50\nallowed_hosts = ['Alt.example']", "in small letters"),
        ("qps = 50", "qps = 50\nallowed_hosts = ['u@alt.example']", "write each as host or host:port"),
        ("qps = 50", "qps = 50\nallowed_hosts = []", "must be a list of hosts"),
        ("qps = 50", "qps = 50\nallowed_hosts = ['a.example', 'a.example']", "has an entry twice"),
        ("qps = 50", "qps = 50\nallowed_hosts = ['127.0.0.1:80']", "loopback address (127.0.0.1): write allow_"),
        ("qps = 50", "qps = 50\nallowed_hosts = ['169.254.169.254']", "this one is never sent to"),
        ("qps = 50", "qps = 50\ntags = ['sh']", "must be a table: write tags = { region"),
        ("qps = 50", "qps = 50\ntags = { 'a b' = 'sh' }", "a tag's name is 1 to 64 letters"),
        ("qps = 50", "qps = 50\ntags = { region = 1 }", "has region, which must be 1 to 256 printable"),
        ("[[jobs]]", "a = = 1\n[[jobs]]", "jobs.toml:2: is not TOML"),
        ("qps = 50", "qps = 50\nqps = 51", "is not TOML"),
    ],
)  # fmt: skip
def test_each_mistake_is_told_with_its_place_and_fix(folder: Path, old: str, new: str, said: str) -> None:
    """One changed place, one sentence about it."""
    assert old in SMALL
    found = [line for line in mistakes(SMALL.replace(old, new), folder) if said in line]
    assert len(found) == 1
    assert found[0].startswith("jobs.toml:")


LIVE = """
[[jobs]]
id = "payment-orders"
start = "01:15"
timezone = "Europe/Prague"
source = { dsn_env = "ACCOUNTING_DSN", query_file = "q.sql" }
event_id = ["order_id", "business_date"]
partner = "bank_to"

[partners.AB]
endpoint = "https://ab.example/payments"
qps = 50
allowed_hosts = ["alt.example:8443"]

[partners.CD]
endpoint = "http://127.0.0.1:8901/payments"
qps = 50
allow_private = true

[partners.NORTH]
endpoint = "https://north.example"
qps = 5
tenant = "north"

[sources.shop]
key_env = "SHOP_KEY"

[sources.north]
key_env = "NORTH_KEY"
tenant = "north"

[[routes]]
name = "payments"
event_type = "payment.*"
to = ["AB"]
"""


def test_a_smallest_source_and_route_are_enough(folder: Path) -> None:
    """One key each; everything else has a default."""
    configuration = read(LIVE, folder, {"SHOP_KEY": "k"})
    assert configuration.sources["shop"] == LiveSource(name="shop", keys=(b"k",))
    assert configuration.routes == (Route(name="payments", to=("AB",), event_types=("payment.*",)),)
    assert configuration.partners["AB"].allowed_hosts == ("alt.example:8443",)


def test_every_key_of_a_source_and_a_route_arrives(folder: Path) -> None:
    """Lists and single values alike, tags sorted by name."""
    text = LIVE.replace(
        'key_env = "SHOP_KEY"',
        '''key_env = ["SHOP_NEW", "SHOP_OLD"]
durability = "redis"
rate = 5
max_body = 1024
remember = "30d"''',
    ).replace(
        'to = ["AB"]',
        '''to = "{routing_key}"
source = ["shop"]
routing_key = ["AB", "C*"]
tags = { region = "sh", env = "test" }
body = "{order: id}"
[[routes]]
tenant = "north"
source = "north"
to = ["NORTH"]
target_uri = "https://north.example/{tags.region}/{event_id}"''',
    )
    configuration = read(text, folder, {"SHOP_NEW": "new", "SHOP_OLD": "old"})
    assert configuration.sources["shop"] == LiveSource(
        name="shop",
        keys=(b"new", b"old"),
        durability=Durability.REDIS,
        rate=5,
        max_body=1024,
        remember=timedelta(days=30),
    )
    assert configuration.sources["north"].tenant == "north"
    assert configuration.routes == (
        Route(
            name="payments",
            to=("{routing_key}",),
            sources=("shop",),
            event_types=("payment.*",),
            routing_keys=("AB", "C*"),
            tags=(("env", "test"), ("region", "sh")),
            body="{order: id}",
        ),
        Route(
            name="2",
            to=("NORTH",),
            tenant="north",
            sources=("north",),
            target_uri="https://north.example/{tags.region}/{event_id}",
        ),
    )


def test_a_source_that_lacks_a_key_is_not_ready(folder: Path) -> None:
    """Also if it has another: what is signed with the one that is missing would look forged."""
    text = LIVE.replace('"SHOP_KEY"', '["SHOP_NEW", "SHOP_OLD"]')
    configuration = read(text, folder, {"SHOP_OLD": "old", "NORTH_KEY": "k"})
    assert configuration.unready_sources == {"shop"}
    assert configuration.sources["shop"].keys == ()
    assert any("SHOP_NEW is not set (for sources.shop.key_env)" in one for one in configuration.unset_secrets)


def test_a_key_of_a_source_that_cannot_be_one_is_told_and_never_shown(folder: Path) -> None:
    """Neither it nor those that are right."""
    said = mistakes(LIVE, folder, {"SHOP_KEY": "hunter2\n"})
    assert "sources.shop.key_env takes SHOP_KEY, whose value has a space or line break" in said[0]
    assert "hunter2" not in said[0]
    assert "hunter2" not in repr(read(LIVE, folder, {"SHOP_KEY": "hunter2"}))


KEY = 'key_env = "SHOP_KEY"'
TO = 'to = ["AB"]'
BY_KEY = 'to = "{routing_key}"'


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (KEY, "key = 'x'", "sources.shop.key would put a secret into the file"),
        (KEY, "rate = 5", "sources.shop.key_env is missing"),
        (KEY, "key_env = 'shop key'", "must be the name of an environment variable"),
        (KEY, KEY + "\nrate = 0", "sources.shop.rate must be above 0, is 0"),
        (KEY, KEY + "\nrate = 1_000_001", "must be at most 1000000"),
        (KEY, KEY + "\nmax_body = 1023", "must be at least 1024, is 1023"),
        (KEY, KEY + "\nmax_body = 16_777_217", "must be at most 16777216"),
        (KEY, KEY + "\nremember = '59s'", 'must be "1m" to "30d", is 59s'),
        (KEY, KEY + "\nremember = '31d'", 'must be "1m" to "30d", is 31d'),
        (KEY, KEY + "\ndurability = 'disk'", "must be 'postgres' or 'redis', is \"disk\""),
        (KEY, KEY + "\nqps = 5", "sources.shop.qps is no key here"),
        ("[sources.shop]", "[[sources]]", "sources must be tables: write [sources.shop]"),
        ("[sources.shop]", '[sources."a b"]', "must have a name of 1 to 64 letters"),
        ("[sources.shop]", "[sources.payment-orders]", "has the name of a job"),
        ("[[routes]]", "[routes]", "routes must be an array of tables: write [[routes]]"),
        (TO, "to = []", "routes.payments.to names nobody"),
        (TO, "", 'routes.payments.to is missing: write to = ["AB"]'),
        (TO, "to = [1]", "must be a partner or a list of partners"),
        (TO, "to = ['AB', 'AB']", "has an entry twice"),
        (TO, "to = ['{event_type}']", 'must have names of partners or "{routing_key}" in it'),
        (TO, "to = ['ABB']", 'has "ABB", which is no partner: did you mean AB?'),
        (TO, "to = 'ab'", "did you mean AB?"),
        (TO, "to = 'ZZZ'", "which is no partner: there are AB, CD"),
        (TO, "to = ['AB', 'NORTH']", 'has "NORTH", a partner of tenant north: a route of tenant default'),
        (TO, TO + "\ntenant = 'north'", 'has "AB", a partner of tenant default: a route of tenant north'),
        (TO, BY_KEY + "\ntenant = 'south'", "tenant south has no partner"),
        (TO, TO + "\nsource = 'shpo'", 'routes.payments.source has "shpo", which is no source: did you mean shop?'),
        (TO, TO + "\nsource = ['shop', 'north']", 'has "north", a source of tenant north'),
        (TO, TO + "\nsource = 'payment-orders'", 'has "payment-orders", which is a job'),
        (TO, TO + "\nsource = 5", "must be a name or a list of names"),
        (TO, TO + "\nsource = 'a b'", "must be 1 to 64 letters"),
        (TO, BY_KEY + "\nrouting_key = 'ABB'", 'has "ABB", and no partner of tenant default is called so'),
        (TO, BY_KEY + "\nrouting_key = ['A*', 'X*']", 'has "X*", and no partner of tenant default is called so'),
        (TO, BY_KEY + "\nrouting_key = 'NOR*'", 'has "NOR*", and no partner of tenant default'),
        (TO, TO + "\nrouting_key = ''", "is empty: leave it out"),
        (TO, TO + "\nrouting_key = '\t'", "routing_key can match no event"),
        (TO, TO + f"\nrouting_key = '{'a' * 257}'", "routing_key can match no event"),
        ('"payment.*"', '"payment.[ab]"', "event_type can match no event, is 'payment.[ab]'"),
        ('"payment.*"', '"pay ment"', "event_type can match no event"),
        ('"payment.*"', '""', "event_type can match no event"),
        ('"payment.*"', f'"{"a" * 129}"', "a type has at most 128 characters"),
        ('"payment.*"', "[]", "must be a pattern or a list of patterns"),
        (TO, TO + "\nbody = 'a['", "routes.payments.body must be a JMESPath expression"),
        (TO, TO + "\nbody = 'uppercase(a)'", "there is no function uppercase"),
        (TO, TO + "\ntags = { region = '' }", "has region, which must be 1 to 256 printable"),
        (TO, TO + "\ntags = { " + ", ".join(f"t{n} = 'x'" for n in range(17)) + " }", "must be at most 16 tags"),
        (TO, TO + "\ntarget_uri = 'https://ab.example/{routingkey}'", "did you mean {routing_key}?"),
        (TO, TO + "\ntarget_uri = 'https://ab.example/{payload}'", "which nothing fills"),
        (TO, TO + "\ntarget_uri = 'https://ab.example/{tags.a b}'", "which nothing fills"),
        (TO, TO + "\ntarget_uri = 'https://ab.example/{}'", "which nothing fills"),
        (TO, TO + "\ntarget_uri = 'https://ab.example/{source'", "a brace without its other half"),
        (TO, TO + "\ntarget_uri = 'https://{routing_key}.example/'", "would take its host from the event"),
        (TO, TO + "\ntarget_uri = 'https://ab.example{routing_key}'", "would take its host from the event"),
        (TO, TO + "\ntarget_uri = 'https://ab.example:{routing_key}/'", "would take its host from the event"),
        (TO, TO + "\ntarget_uri = '{source}://ab.example/'", "would take its host from the event"),
        (TO, TO + "\ntarget_uri = '{routing_key}'", "would take its host from the event"),
        (TO, TO + "\ntarget_uri = '/pay'", "must begin with https://"),
        (TO, TO + "\ntarget_uri = 'https://u:p@ab.example/'", "must not contain credentials"),
        (TO, TO + f"\ntarget_uri = 'https://ab.example/{'a' * 2048}'", "must be at most 2048 characters"),
        (TO, TO + "\ntarget_uri = 'https://evil.example/'",
         'leads to evil.example, where partners.AB is not: write allowed_hosts = ["evil.example"] there'),
        (TO, TO + "\ntarget_uri = 'https://alt.example/'", "leads to alt.example, where"),
        (TO, TO + "\ntarget_uri = 'https://ab.example:444/'", 'write allowed_hosts = ["ab.example:444"]'),
        (TO, TO + "\ntarget_uri = 'http://ab.example/'", "is http, which partners.AB is not sent over"),
        (TO, BY_KEY + "\ntarget_uri = 'https://far.example/'", "where partners.AB (and 1 more) is not"),
        (TO, TO + "\nto_all = true", "routes.payments.to_all is no key here"),
        (TO, TO + "\n[[routes]]\nname = 'payments'\nto = 'AB'", "routes[2].name is taken: route number 1"),
        (TO, TO + 2 * "\n[[routes]]\nname = '1'\nto = 'AB'", "routes[3].name is taken"),
    ],
)  # fmt: skip
def test_each_mistake_about_live_events_is_told_with_its_place_and_fix(
    folder: Path, old: str, new: str, said: str
) -> None:
    """One changed place, one sentence about it."""
    assert LIVE.count(old) == 1
    found = [line for line in mistakes(LIVE.replace(old, new), folder) if said in line]
    assert len(found) == 1
    assert found[0].startswith("jobs.toml:")


@pytest.mark.parametrize(
    "uri",
    [
        "https://ab.example/pay/{routing_key}?type={event_type}",
        "https://ab.example:443/x",
        "https://AB.example/x",
        "https://alt.example:8443/{tags.region}/{source}/{event_id}",
    ],
)
def test_a_template_may_lead_to_the_endpoints_own_host_and_to_allowed_ones(folder: Path, uri: str) -> None:
    """With the places behind the host."""
    route = read(LIVE.replace(TO, f"{TO}\ntarget_uri = '{uri}'"), folder).routes[0]
    assert route.target_uri == uri


def test_a_template_need_only_be_allowed_by_those_that_it_can_reach(folder: Path) -> None:
    """Where the routing key names the partner, its patterns bound who that may be."""
    text = LIVE.replace(TO, f"{BY_KEY}\nrouting_key = 'A*'\ntarget_uri = 'https://ab.example/x'")
    assert read(text, folder).routes[0].routing_keys == ("A*",)


def test_a_mistake_in_a_partner_is_no_mistake_of_the_route_that_names_it(folder: Path) -> None:
    """The same for a source: each is told once, where it stands."""
    text = LIVE.replace("https://ab.example/payments", "ab.example").replace(KEY, "")
    text = text.replace(TO, f"{TO}\nsource = 'shop'\ntarget_uri = 'https://ab.example/x'")
    assert [line.split(" ")[1] for line in mistakes(text, folder)] == [
        "partners.AB.endpoint",
        "sources.shop.key_env",
    ]


def test_mistakes_in_one_route_are_told_together(folder: Path) -> None:
    """What needs other tables beside what does not."""
    text = LIVE.replace(TO, 'to = ["ABB"]\nsource = "shpo"\nbody = "a["').replace('"payment.*"', '"a b"')
    assert [line.split(" ")[1] for line in mistakes(text, folder)] == [
        "routes.payments.event_type",
        "routes.payments.to",
        "routes.payments.source",
        "routes.payments.body",
    ]


def test_all_mistakes_are_told_at_once_in_the_order_of_the_file(folder: Path) -> None:
    """One hides no other, in another table or in the same."""
    text = (
        SMALL.replace('"01:15"', '"25:15"')
        .replace('"q.sql"', '"missing.sql"')
        .replace("Europe/Prague", "Europe/Nowhere")
        .replace("qps = 50", "qps = 0\nqsp = 1")
    )
    said = mistakes(text, folder)
    assert [line.split(" ", 1)[0] for line in said] == [
        "jobs.toml:4:", "jobs.toml:5:", "jobs.toml:6:", "jobs.toml:12:", "jobs.toml:13:",
    ]  # fmt: skip


def test_what_needs_two_keys_is_told_beside_other_mistakes(folder: Path) -> None:
    """A rate that is wrong hides neither the address that is never sent to nor the guard that is too small."""
    text = SMALL.replace("https://ab.example/payments", "http://169.254.169.254/").replace(
        "qps = 50", 'qps = 0\nguard = "8ms"\nmax_age = 5.5'
    )
    said = mistakes(text, folder)
    assert len(said) == 4
    for part in (
        "metadata service address",
        "AB.qps must be",
        "lateness must be below",
        "AB.max_age must be",
    ):
        assert part in "".join(said)


def test_two_jobs_of_one_id_are_told(folder: Path) -> None:
    """The second is named by its place."""
    job = SMALL[: SMALL.index("[partners")]
    assert "jobs[2].id is taken" in "".join(mistakes(job + SMALL, folder))


def test_a_second_job_with_a_mistake_is_found_where_it_stands(folder: Path) -> None:
    """Lines are those of the second table, also for the keys of `[jobs.source]`."""
    second = """
[[jobs]]
id = "second"
start = "26:00"
timezone = "UTC"
event_id = "id"
partner = "AB"
[jobs.source]
dsn_env = "X_DSN"
query_file = "nowhere.sql"
"""
    said = mistakes(SMALL + second, folder)
    lines = (SMALL + second).splitlines()
    assert [lines[int(line.split(":")[1]) - 1] for line in said] == [
        'start = "26:00"',
        'query_file = "nowhere.sql"',
    ]
    assert all("jobs.second." in line for line in said)


def test_lines_are_not_looked_for_inside_long_strings() -> None:
    """Text that only looks like a key or table is no place."""
    text = 'a = """\n[x]\nb = 1\n"""\nc = 2\n[t]\nd.e = 3\n'
    assert lines_of(text) == {("a",): 1, ("c",): 5, ("t",): 6, ("t", "d", "e"): 7}


@NO_DEADLINE
@given(st.integers(0, 10**9).map(lambda ms: timedelta(milliseconds=ms)))
def test_a_duration_is_read_as_it_is_shown(value: timedelta) -> None:
    """What a message shows could be written into the file."""
    assert duration(shown_duration(value)) == value


@NO_DEADLINE
@given(st.text(max_size=300))
def test_any_text_is_either_read_or_has_mistakes(text: str) -> None:
    """No other exception, whatever somebody wrote."""
    try:
        read(text, ROOT)
    except ConfigurationError as error:
        said = error.mistakes
    else:
        said = ("nothing",)
    assert said


_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


_MODELS: dict[str, type[BaseModel]] = {
    "[[jobs]]": JobTable,
    "[partners.AB]": PartnerTable,
    "[sources.shop]": LiveSourceTable,
    "[[routes]]": RouteTable,
}


def _toml(value: object) -> str:
    match value:
        case None:
            return "1979-05-27"
        case bool():
            return str(value).lower()
        case str():
            return '"' + "".join(f"\\U{ord(c):08x}" for c in value if not 0xD800 <= ord(c) <= 0xDFFF) + '"'
        case list():
            return f"[{', '.join(_toml(each) for each in value)}]"
        case dict():
            named = {_toml(str(key)): _toml(each) for key, each in value.items()}
            return f"{{ {', '.join(f'{key} = {each}' for key, each in named.items())} }}"
        case _:
            return str(value)


@NO_DEADLINE
@given(table=st.sampled_from(sorted(_MODELS)), data=st.data(), value=_VALUES)
def test_any_value_of_any_key_is_either_read_or_told(
    table: str, data: st.DataObject, value: dict[str, object]
) -> None:
    """Whatever type a value has, it never raises anything else."""
    model = _MODELS[table]
    key = data.draw(st.sampled_from(sorted(model.model_fields)))
    with pytest.raises(ConfigurationError):
        # `none` is no key, so there is always something to say.
        read(f"none = 1\n{table}\n{key} = {_toml(value)}\n", ROOT)


# -- the file and the environment -------------------------------------------------------------------------


def test_the_shipped_file_is_right() -> None:
    """Thirteen banks, one job, nothing set in the environment."""
    settings = load({"MADEIRA_CONFIG": str(ROOT / "jobs.toml")})
    assert sorted(settings.partners) == [
        "AB", "CD", "EF", "GH", "IJ", "KL", "MN", "OP", "QR", "ST", "UV", "WX", "YZ",
    ]  # fmt: skip
    assert len({partner.qps for partner in settings.partners.values()}) > 5
    assert list(settings.sources) == ["shop"]
    assert [route.to for route in settings.routes] == [("{routing_key}",)]
    scheduled = settings.job("payment-orders")
    assert ":business_date" in scheduled.job.query
    assert scheduled.schedule.calendar is Calendar.WEEKDAYS
    assert (settings.database_url, settings.redis_url, settings.key_prefix) == (None, None, "madeira")


def test_the_environment_is_read(folder: Path) -> None:
    """URLs, places and names as given; URLs never show."""
    (folder / "jobs.toml").write_text(SMALL)
    settings = load(
        {
            "MADEIRA_DATABASE_URL": "postgresql://u:hunter2@h/d",
            "MADEIRA_REDIS_URL": "redis://:hunter2@h:6379/0",
            "MADEIRA_CONFIG": str(folder / "jobs.toml"),
            "MADEIRA_VAR": str(folder / "data"),
            "MADEIRA_KEY_PREFIX": "other",
            "MADEIRA_LOG": "DEBUG",
            "MADEIRA_DATABASE_URI": "a slip",
            "MADEIRA_LISTEN": "192.0.2.1:80",
            "MADEIRA_METRICS_DIR": "/run/metrics",
        }
    )
    assert (settings.listen, settings.metrics_dir) == (("192.0.2.1", 80), Path("/run/metrics"))
    assert settings.database_url == "postgresql://u:hunter2@h/d"
    assert (settings.var, settings.key_prefix, settings.log_level) == (folder / "data", "other", "debug")
    assert "hunter2" not in repr(settings)
    assert any("did you mean MADEIRA_DATABASE_UR" in line for line in settings.warnings)


def test_what_the_environment_leaves_out_has_a_default(folder: Path) -> None:
    """The metrics stand beside the private servers' data."""
    (folder / "jobs.toml").write_text(SMALL)
    settings = load({"MADEIRA_CONFIG": str(folder / "jobs.toml"), "MADEIRA_VAR": str(folder / "data")})
    assert (settings.listen, settings.metrics_dir) == (("127.0.0.1", 8700), folder / "data" / "metrics")


@pytest.mark.parametrize(
    ("text", "read_as"),
    [
        ("127.0.0.1:8700", ("127.0.0.1", 8700)),
        ("[::1]:1", ("::1", 1)),
        ("madeira.internal:65535", ("madeira.internal", 65535)),
        *((text, None) for text in ("8700", ":8700", "127.0.0.1", "::1:80", "a:0", "a:65536", "a b:80", "http://a:80")),
    ],
)  # fmt: skip
def test_where_to_listen_is_a_host_and_a_port(text: str, read_as: tuple[str, int] | None) -> None:
    """An IPv6 address in brackets; anything else is told."""
    if read_as is None:
        with pytest.raises(ValueError, match="must be HOST:PORT"):
            listen_address(text)
    else:
        assert listen_address(text) == read_as


def test_mistakes_of_environment_and_file_come_together(folder: Path) -> None:
    """Whoever mends one sees the other at the same time."""
    (folder / "jobs.toml").write_text(SMALL.replace("qps = 50", "qps = 0"))
    with pytest.raises(ConfigurationError) as raised:
        load(
            {
                "MADEIRA_CONFIG": str(folder / "jobs.toml"),
                "MADEIRA_LOG": "loud",
                "MADEIRA_KEY_PREFIX": "a b",
                "MADEIRA_LISTEN": "x",
            }
        )
    assert [line.split(" ")[1] for line in raised.value.mistakes] == [
        "MADEIRA_KEY_PREFIX",
        "MADEIRA_LISTEN",
        "MADEIRA_LOG",
        "partners.AB.qps",
    ]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "the file is not there"),
        (b"\xff\xfe", "byte 0 is not UTF-8"),
        ("directory", "cannot be read"),
    ],
)
def test_a_file_that_cannot_be_read_is_told(tmp_path: Path, content: bytes | str | None, said: str) -> None:
    """With its name and what to do."""
    config = tmp_path / "jobs.toml"
    if isinstance(content, bytes):
        config.write_bytes(content)
    elif content is not None:
        config.mkdir()
    with pytest.raises(ConfigurationError, match=said):
        load({"MADEIRA_CONFIG": str(config)})


def test_a_byte_order_mark_and_windows_line_ends_are_no_mistake(folder: Path) -> None:
    """As some editors write them."""
    config = folder / "jobs.toml"
    config.write_bytes(b"\xef\xbb\xbf" + SMALL.replace("\n", "\r\n").encode())
    assert "AB" in load({"MADEIRA_CONFIG": str(config)}).partners


def test_an_unknown_name_is_answered_with_the_nearest(folder: Path) -> None:
    """For commands that take a job or a partner."""
    (folder / "jobs.toml").write_text(SMALL)
    settings: Settings = load({"MADEIRA_CONFIG": str(folder / "jobs.toml")})
    assert settings.partner("AB").name == "AB"
    with pytest.raises(ConfigurationError, match="did you mean payment-orders"):
        settings.job("payment-order")
    with pytest.raises(ConfigurationError, match="there are AB"):
        settings.partner("QQ")


# -- the reference ---------------------------------------------------------------------------------------------


def rows(model: type[BaseModel]) -> Iterator[str]:
    """The lines of docs/jobs-toml.md about one table, one a key."""
    for name, field in model.model_fields.items():
        default: object = field.get_default(call_default_factory=True)
        match default:
            case _ if default is PydanticUndefined:
                shown = "**required**"
            case None | () | []:
                shown = ""
            case bool():
                shown = f"`{str(default).lower()}`"
            case timedelta():
                shown = f'`"{shown_duration(default)}"`'
            case tuple():
                shown = "`[" + ", ".join(f'"{shown_duration(each)}"' for each in default) + "]`"
            case str():
                shown = f'`"{default}"`'
            case _:
                shown = f"`{default}`"
        (example,) = field.examples or [""]
        in_code = f"`` {example} ``" if "`" in example else f"`{example}`"
        yield f"| `{name}` | {shown} | {field.description} | {in_code} |"


@pytest.mark.parametrize("model", [JobTable, SourceTable, PartnerTable, LiveSourceTable, RouteTable])
def test_the_reference_has_every_key_as_it_is(model: type[BaseModel]) -> None:
    """Name, default, meaning and example, word for word."""
    documented = (ROOT / "docs" / "jobs-toml.md").read_text().splitlines()
    assert [row for row in rows(model) if row not in documented] == []


def test_the_reference_has_every_variable() -> None:
    """What the environment can say is told in the same place."""
    documented = (ROOT / "docs" / "jobs-toml.md").read_text().splitlines()
    lines = [f"| `{name}` | {meaning} |" for name, meaning in ENVIRONMENT.items()]
    assert [line for line in lines if line not in documented] == []


@pytest.mark.parametrize("model", [JobTable, SourceTable, PartnerTable, LiveSourceTable, RouteTable])
def test_every_example_of_the_reference_is_right(model: type[BaseModel]) -> None:
    """Whoever copies one makes no mistake."""
    partner = '[partners.AB]\nendpoint = "https://ab.example/payments"\nqps = 50\n'
    job = SMALL[: SMALL.index("[partners")].replace("q.sql", "queries/payment_orders.sql")
    for name, field in model.model_fields.items():
        (example,) = field.examples or [""]
        line = f"{name} = {example}\n"
        match model.__name__:
            case "PartnerTable":
                kept = [each for each in partner.splitlines() if not each.startswith(f"{name} =")]
                text = job + "\n".join([*kept, line])
            case "LiveSourceTable":
                text = f"{partner}[sources.shop]\n" + line
                text += "" if name == "key_env" else 'key_env = "SHOP_KEY"\n'
            case "RouteTable":
                text = f'{partner}[sources.shop]\nkey_env = "SHOP_KEY"\n[[routes]]\n{line}'
                text += "" if name == "to" else 'to = ["AB"]\n'
            case "JobTable":
                pair = {"amount": 'currency = "CZK"\n', "currency": 'amount = "amount"\n'}.get(name, "")
                kept = [each for each in job.splitlines() if not each.startswith(f"{name} =")]
                text = "\n".join([*kept, line + pair + partner])
            case _:
                source = {"dsn_env": '"X"', "query_file": '"queries/payment_orders.sql"'} | {name: example}
                inline = ", ".join(f"{key} = {value}" for key, value in source.items())
                kept = [each for each in job.splitlines() if not each.startswith("source =")]
                text = "\n".join([*kept, f"source = {{ {inline} }}", partner])
        assert read(text, ROOT).partners
