"""The words: what can be compared with the code is compared, so that the pages don't fall behind it."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from madeira.cli import main
from madeira.configuration import parse
from madeira.settings import ENVIRONMENT
from pipelines import dispatch
from scheduler import fire
from sinks import connector, webhook
from sinks.partner import Partner
from streams import errors, leases, scripts
from streams.delivery import WORKER_DIED, Cause
from streams.keys import Keys
from tests.docs.life import life

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PACKAGES = ("madeira", "scheduler", "pipelines", "sinks", "streams")
PAGES = sorted([ROOT / "README.md", ROOT / "CHANGELOG.md", ROOT / "data" / "README.md", *DOCS.rglob("*.md")])

_FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)")
_LOGGED = {"debug", "info", "warning", "error", "exception", "critical"}


def page(name: str) -> str:
    """A page's text, by its path from the root."""
    return (ROOT / name).read_text(encoding="utf-8")


def section(name: str, title: str) -> str:
    """The part of a page below the heading `title`, up to the next heading of its level or a higher one."""
    level, fenced = 0, False
    lines: list[str] = []
    for line in page(name).splitlines():
        fenced ^= line.startswith("```")
        depth = 0 if fenced else len(line) - len(line.lstrip("#"))
        if level and 0 < depth <= level:
            break
        if level:
            lines.append(line)
        elif depth and line[depth:].strip() == title:
            level = depth
    assert level, f"{name} has no section {title}"
    return "\n".join(lines)


def anchors(path: Path) -> set[str]:
    """The anchors that GitHub makes of a page's headings."""
    headings = re.findall(r"^#+ (.+)$", _FENCE.sub("", path.read_text(encoding="utf-8")), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


def named(text: str) -> set[str]:
    """What stands in backticks in the first column of the tables of a text."""
    first = [line.split("|")[1] for line in text.splitlines() if line.startswith("|")]
    return set(re.findall(r"`([^`]+)`", "\n".join(first)))


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(path: Path) -> None:
    """Every link within the tree names a file that is there, and a heading that it has."""
    broken = []
    for target in _LINK.findall(_FENCE.sub("", path.read_text(encoding="utf-8"))):
        if target.startswith(("https://", "http://")):
            continue
        file, _, anchor = target.partition("#")
        there = (path.parent / file).resolve() if file else path
        if not there.exists() or (anchor and anchor not in anchors(there)):
            broken.append(target)
    assert not broken


def test_every_page_is_listed() -> None:
    """docs/README.md leads to each page, and the list of decisions to each decision."""
    index = page("docs/README.md")
    assert [p.name for p in DOCS.glob("*.md") if p.name != "README.md" and f"({p.name})" not in index] == []
    decisions = page("docs/decisions/README.md")
    unlisted = [p.name for p in (DOCS / "decisions").glob("0*.md") if f"({p.name})" not in decisions]
    assert unlisted == []


def test_a_decision_says_choice_why_and_price() -> None:
    """Each decision has its three parts and the number of its file."""
    for path in (DOCS / "decisions").glob("0*.md"):
        text = path.read_text(encoding="utf-8")
        assert text.startswith(f"# {path.name[:4]} "), path.name
        for part in ("**Choice.**", "**Why.**", "**Given up.**"):
            assert part in text, f"{path.name} lacks {part}"


def commands(group: click.Group, prefix: str) -> Iterator[str]:
    """Every command as one types it."""
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            yield from commands(command, f"{prefix} {name}")
        else:
            yield f"{prefix} {name}"


def test_the_readme_has_every_command_and_no_other() -> None:
    """The table of commands is what `madeira --help` has."""
    listed = {re.sub(r" (?:-|[A-Z]).*", "", call) for call in named(section("README.md", "Commands"))}
    assert listed == set(commands(main, "madeira"))


def test_options_that_pages_write_are_there() -> None:
    """Every `--option` beside a `madeira` command in a page is one of that command."""
    known = {"--help"}
    for parameters in (p for c in walk(main) for p in c.params):
        known |= set(parameters.opts)
    wrong = []
    for path in PAGES:
        for call in re.findall(r"madeira [a-z][^\n`]*", path.read_text(encoding="utf-8")):
            wrong += [option for option in re.findall(r"(?<!\S)--[a-z-]+", call) if option not in known]
    assert wrong == []


def walk(command: click.Command) -> Iterator[click.Command]:
    """A command and all below it."""
    yield command
    if isinstance(command, click.Group):
        for below in command.commands.values():
            yield from walk(below)


def test_make_targets_that_pages_write_are_there() -> None:
    """Every `make target` in a page is in the Makefile."""
    targets = set(re.findall(r"^([a-z]+):", page("Makefile"), re.MULTILINE))
    written = {
        t
        for path in PAGES
        for t in re.findall(r"(?:`|^)make ([a-z]+)", path.read_text("utf-8"), re.MULTILINE)
    }
    assert {"demo", "test", "lint"} <= written
    assert written <= targets


def test_operations_has_every_variable_and_no_other() -> None:
    """The table of the environment is what the settings read."""
    assert named(section("docs/operations.md", "Environment")) == set(ENVIRONMENT)


@pytest.mark.parametrize("name", ["README.md", "docs/jobs-toml.md"])
def test_the_smallest_jobs_toml_works(name: str, tmp_path: Path) -> None:
    """What a page shows as the smallest file is read without a mistake, beside the query that we ship."""
    blocks = re.findall(r"^```toml\n(.*?)^```", page(name), re.MULTILINE | re.DOTALL)
    queries = tmp_path / "queries"
    queries.mkdir()
    (queries / "payment_orders.sql").write_text(page("queries/payment_orders.sql"))
    configuration = parse(blocks[0], path="jobs.toml", folder=tmp_path, environ={})
    assert [scheduled.job.id for scheduled in configuration.jobs] == ["payment-orders"]
    assert list(configuration.partners) == ["AB"]


def test_the_drawing_is_made_from_moves() -> None:
    """The life of a delivery as drawn is the table by which it lives."""
    assert f"```mermaid\n{life()}\n```" in page("docs/architecture.md")


def test_errors_has_every_exception() -> None:
    """Each class of the tree has a row that says what to do."""
    classes = {
        name
        for name, kind in inspect.getmembers(errors, inspect.isclass)
        if kind.__module__ == errors.__name__
    }
    assert classes
    assert classes - named(section("docs/errors.md", "Exceptions")) == set()


def test_the_tree_of_errors_is_drawn_whole() -> None:
    """Each class that the five packages have below `MadeiraError` stands in the drawing."""
    text = "\n".join(path.read_text() for path in ROOT.glob("*/*.py"))
    known = {"MadeiraError"}
    while more := set(re.findall(rf"^class (\w+)\((?:{'|'.join(known)})\):", text, re.MULTILINE)) - known:
        known |= more
    assert len(known) > 5
    assert {name for name in known if not re.search(rf"\b{name}\b", str(errors.__doc__))} == set()


def test_errors_has_every_cause() -> None:
    """Each cause of a dead delivery has a row."""
    assert {cause.value for cause in Cause} - named(section("docs/errors.md", "Deliveries")) == set()


def test_errors_has_every_reason_of_an_offender() -> None:
    """What the batch says of a row that cannot become a payment can be found."""
    sql = page("sinks/sql/batch/find_offenders.sql")
    reasons = re.findall(r"THEN (?:format\()?'([^']+)'", sql)
    text = section("docs/errors.md", "Batches")
    assert reasons
    # The page has letters where the text has values.
    longest = [max(reason.removeprefix("amount ").split("%%s"), key=len).strip() for reason in reasons]
    assert [words for words in longest if words not in text] == []


def logged() -> Iterator[str]:
    """Every constant event name that our code logs."""
    for package in PACKAGES:
        for path in (ROOT / package).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if (
                    isinstance(node, ast.Call)
                    and isinstance(node.func, ast.Attribute)
                    and isinstance(node.func.value, ast.Name)
                    and node.func.value.id in {"log", "_log", "logger"}
                ):
                    place = 0 if node.func.attr in _LOGGED else 1 if node.func.attr == "log" else None
                    if place is not None and isinstance(event := node.args[place], ast.Constant):
                        yield str(event.value)


def test_operations_has_every_log_line_and_no_other() -> None:
    """The table of events is what the code logs."""
    assert named(section("docs/operations.md", "Log lines")) == set(logged())


@pytest.mark.parametrize("package", PACKAGES)
def test_a_package_says_what_is_in_it(package: str) -> None:
    """A package's docstring names each of its files and no other, in reading order."""
    docstring = ast.get_docstring(ast.parse(page(f"{package}/__init__.py"))) or ""
    files = {path.stem for path in (ROOT / package).glob("*.py") if not path.stem.startswith("__")}
    assert set(re.findall(r"`([a-z_]+)`", docstring)) == files


def test_keys_are_as_the_architecture_lists_them() -> None:
    """The table of Redis keys has every key that is spelled."""
    keys = Keys().partner("partner", "tenant")
    assert keys.base == "madeira:{tenant.partner}"
    spelled = {
        *(key.removeprefix(keys.base) for key in (keys.pace, keys.lanes, keys.open, keys.delays, keys.dead)),
        *(":live", ":batch:<n>", ":batch:<n>:returns", ":delay:<s>", ":outcomes:<generation>"),
    }
    listed = named(section("docs/architecture.md", "Redis keys"))
    assert {f"base{key}" for key in spelled} <= listed
    assert Keys().worker("<id>") in listed


def test_tables_are_as_the_architecture_lists_them() -> None:
    """The list of tables has every table that the migrations make."""
    made: set[str] = set()
    for path in (ROOT / "sinks" / "migrations" / "versions").glob("*.py"):
        text = path.read_text(encoding="utf-8")
        made |= set(re.findall(r"^CREATE TABLE (\w+)\b(?! PARTITION OF)", text, re.MULTILINE))
    assert made
    assert made == named(section("docs/architecture.md", "PostgreSQL tables"))


def test_figures_are_those_of_the_code() -> None:
    """Numbers that pages promise are the constants by which the code goes."""
    operations, architecture = page("docs/operations.md"), page("docs/architecture.md")
    assert leases.LEASE.total_seconds() == 15
    assert "15 s" in operations
    assert f"{scripts.MOST_UNRECORDED:,} outcomes" in operations
    assert f"at most {dispatch.HORIZON.total_seconds() * 1000:.0f} ms ahead" in architecture
    assert f"read to {webhook.BODY_LIMIT // 1024} KiB" in architecture
    assert f"closed after {connector.KEEPALIVE_S:.0f} s" in architecture
    assert f"`{WORKER_DIED}`" in page("docs/errors.md")
    assert (
        f"a lease of {fire.LEASE.total_seconds():.0f} s, renewed every {fire.RENEW_EVERY.total_seconds():.0f} s"
        in architecture
    )
    for qps, words in ((50, "T = 20,301 µs"), (1000, "T = 1,016 µs")):
        interval = Partner(name="AB", endpoint="https://ab.example", qps=qps).interval_us
        assert words == f"T = {interval:,} µs"
        assert words in architecture
