"""Files that no reader can misread, published whole or not at all."""

from __future__ import annotations

import csv
import gzip
import hashlib
import io
import json
from decimal import Decimal
from itertools import chain, product
from pathlib import Path

import psycopg
import pytest

from pipelines.report import (
    FORMULA,
    INNER_FORMULA,
    draft,
    guard,
    guard_prose,
    next_revision,
    publish,
    read_rows,
    read_table,
    write_rows,
    write_table,
)
from streams.errors import ReportMismatch


@pytest.mark.parametrize(
    "cell",
    [
        "=1+1",
        "+49 30 1",
        "-5",
        "@SUM(A1)",
        "\t=1",
        "\rx",
        "\nx",
        "  =1",
        "\uff1d1",
        "\uff0b1",
        "\ufeff=1",
        "\u00a0-1",
    ],
)
def test_a_cell_that_a_spreadsheet_would_run_gets_an_apostrophe(cell: str) -> None:
    """One apostrophe in front, nothing else changed."""
    assert guard(cell) == "'" + cell


@pytest.mark.parametrize("cell", ["", "AB", "0001234", "a=b", "1-2", "'x", "payment-orders:7", "  x", "NA"])
def test_other_cells_stay_as_they_are(cell: str) -> None:
    """Identifiers keep their zeros, dashes inside are no formula."""
    assert guard(cell) == guard_prose(cell) == cell


def test_a_formula_behind_a_semicolon_or_line_end_is_made_harmless() -> None:
    """Where a spreadsheet splits at semicolons or ignores our quotes, the rest of the text becomes a cell."""
    assert guard_prose("no;=HYPERLINK(1)") == "no;'=HYPERLINK(1)"
    assert guard_prose("no\r\n-1; +2") == "no\r\n'-1; '+2"


def test_python_and_postgresql_guard_alike(database_url: str) -> None:
    """The items are guarded in SQL, the tables in Python: all texts of up to three telling characters agree."""
    alphabet = "=+-@'\t\r\n ;a0\uff1d\uff0b\uff0d\uff20\u00a0\ufeff"
    texts = ["".join(letters) for letters in chain(*(product(alphabet, repeat=n) for n in range(4)))]
    with psycopg.connect(database_url) as connection:
        rows = connection.execute(
            r"""
            SELECT regexp_replace(t, %(formula)s, '''\&'),
                   regexp_replace(regexp_replace(t, %(inner)s, '\1''\2', 'g'), %(formula)s, '''\&')
            FROM unnest(%(texts)s::text[]) WITH ORDINALITY AS x (t, n) ORDER BY n
            """,
            {"formula": FORMULA, "inner": INNER_FORMULA, "texts": texts},
        ).fetchall()
    assert rows == [(guard(text), guard_prose(text)) for text in texts]


def test_a_table_is_rfc_4180_with_bom_and_reads_back_as_written(tmp_path: Path) -> None:
    """CRLF, doubled quotes, kept zeros and decimals; NA stays a partner, None an empty cell, numbers are bare."""
    path = tmp_path / "t.csv"
    hostile = 'said "no", twice\r\nand;left'
    written = write_table(
        path,
        ["partner", "id", "amount", "count", "reason"],
        [
            ["NA", "0001234", Decimal("0.10"), 1, hostile],
            ["null", "1234567890123456789", Decimal("-2452.000"), 0, None],
            ["", "7", Decimal(12), 10**25, "=1"],
        ],
    )
    data = path.read_bytes()
    assert data.startswith(b'\xef\xbb\xbf"partner","id","amount","count","reason"\r\n"NA","0001234",0.10,1,')
    assert (written.rows, written.size, written.sha256) == (3, len(data), hashlib.sha256(data).hexdigest())
    assert read_table(path).to_numpy().tolist() == [
        ["NA", "0001234", "0.10", "1", hostile],
        ["null", "1234567890123456789", "-2452.000", "0", ""],
        ["", "7", "12", "10000000000000000000000000", "'=1"],
    ]


def test_a_table_of_no_rows_has_its_header(tmp_path: Path) -> None:
    """A quiet day's file is still a table."""
    assert write_table(tmp_path / "t.csv", ["a", "b"], []).rows == 0
    assert (tmp_path / "t.csv").read_bytes() == b'\xef\xbb\xbf"a","b"\r\n'
    assert list(read_table(tmp_path / "t.csv").columns) == ["a", "b"]


@pytest.mark.parametrize("name", ["rows.csv", "rows.csv.gz"])
def test_streamed_rows_get_crlf_at_their_ends_only(tmp_path: Path, name: str) -> None:
    """A line feed inside a quoted cell stays; equal rows make equal bytes."""
    rows = [b"id,reason\n", b'"1","a\nb"\n', b'"2","c"\n']
    written = write_rows(tmp_path / name, iter(rows))
    data = (tmp_path / name).read_bytes()
    text = gzip.decompress(data) if name.endswith(".gz") else data
    assert text == b'\xef\xbb\xbfid,reason\r\n"1","a\nb"\r\n"2","c"\r\n'
    assert (written.rows, written.size, written.sha256) == (2, len(data), hashlib.sha256(data).hexdigest())
    assert list(read_rows(tmp_path / name, ("reason", "id"))) == [("a\nb", "1"), ("c", "2")]
    again = tmp_path / "again"
    again.mkdir()
    assert write_rows(again / name, iter(rows)).sha256 == written.sha256


def test_rows_of_many_chunks_arrive_complete(tmp_path: Path) -> None:
    """Beyond the writer's buffer nothing is lost or doubled."""
    lines = [b"n\n", *(b"%d\n" % n for n in range(200_000))]
    assert write_rows(tmp_path / "n.csv.gz", lines).rows == 200_000
    assert [int(n) for (n,) in read_rows(tmp_path / "n.csv.gz", ("n",))] == list(range(200_000))


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("a.csv", b'\xef\xbb\xbfa,b\r\n"1","2"\r\n"3"\r\n'),
        ("a.csv", b'a,b\r\n"1","2'),
        ("a.csv", b"b\r\n1\r\n"),
        ("a.csv", b""),
        ("a.csv.gz", gzip.compress(b"a,b\r\n1,2\r\n" * 999)[:-12]),
        ("a.csv", b"a,b\r\n\xff,2\r\n"),
    ],
)
def test_a_damaged_file_is_not_taken_for_a_report(tmp_path: Path, name: str, data: bytes) -> None:
    """A short record, an open quote, a missing column, a cut end: each raises `ReportMismatch`."""
    (tmp_path / name).write_bytes(data)
    with pytest.raises(ReportMismatch, match=r"^a\.csv"):
        list(read_rows(tmp_path / name, ("a", "b")))


def test_a_published_folder_is_whole_and_the_next_number_follows(tmp_path: Path) -> None:
    """The draft becomes r1 with its manifest; nothing else is left beside it."""
    day = tmp_path / "2026-11-30"
    with draft(day) as folder:
        write_table(folder / "a.csv", ["a"], [["x"]])
        assert publish(folder, day, next_revision(day), {"verdict": "closed"})
    assert [entry.name for entry in day.iterdir()] == ["r1"]
    assert sorted(entry.name for entry in (day / "r1").iterdir()) == ["a.csv", "manifest.json"]
    assert json.loads((day / "r1" / "manifest.json").read_text()) == {"verdict": "closed"}
    assert next_revision(day) == 2


def test_a_revision_that_exists_is_never_touched(tmp_path: Path) -> None:
    """Publishing onto it says no; the draft can then take the next number, with its own manifest."""
    day = tmp_path / "2026-11-30"
    with draft(day) as folder:
        assert publish(folder, day, 1, {"run": "first"})
    with draft(day) as folder:
        assert not publish(folder, day, 1, {"run": "second", "revision": 1})
        assert publish(folder, day, 2, {"run": "second", "revision": 2})
    assert json.loads((day / "r1" / "manifest.json").read_text()) == {"run": "first"}
    assert json.loads((day / "r2" / "manifest.json").read_text())["revision"] == 2


def test_a_draft_that_fails_leaves_nothing(tmp_path: Path) -> None:
    """An error in the middle removes what was written."""
    day = tmp_path / "2026-11-30"

    def half_a_report() -> None:
        with draft(day) as folder:
            write_table(folder / "a.csv", ["a"], [])
            write_table(folder / "a.csv", ["a"], [])

    with pytest.raises(FileExistsError):
        half_a_report()
    assert list(day.iterdir()) == []


def test_abandoned_drafts_are_removed_and_living_ones_kept(tmp_path: Path) -> None:
    """What a killed run left has no lock; a run that is still writing has one."""
    day = tmp_path / "2026-11-30"
    with draft(day) as living:
        abandoned = day / ".writing-0123456789ab"
        abandoned.mkdir()
        (abandoned / "a.csv").write_bytes(b"half")
        with draft(day) as other:
            assert not abandoned.exists()
            assert living.exists()
            assert other.exists()
            assert other != living


def test_the_csv_module_and_pandas_see_the_same(tmp_path: Path) -> None:
    """Two readers of their own kind agree on every cell."""
    path = tmp_path / "t.csv"
    write_table(path, ["a", "b"], [["x\ny", Decimal("1.50")], ['"', None]])
    rows = list(csv.reader(io.StringIO(path.read_text("utf-8-sig"), newline=""), strict=True))
    assert rows[1:] == read_table(path).to_numpy().tolist()
