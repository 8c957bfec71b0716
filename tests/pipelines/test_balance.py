"""Whether a day adds up, decided from figures alone."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pipelines.balance import Balance, Batch, Category, Final, Verdict, balance
from pipelines.manifest import Line, Sum

TEN = Sum(10, 123_456)


def batch(*lines: Line, state: str = "released") -> Batch:
    """A released batch whose own figures are those of its lines."""
    return Batch(
        id=1,
        job="payment-orders",
        revision=1,
        state=state,
        superseded=False,
        expected_count=sum(line.expected.count for line in lines),
        loaded_count=sum(line.loaded.count for line in lines),
        already_known=sum(line.already_known.count for line in lines),
        ids_sha256="ab",
        found_ids_sha256="ab",
        snapshot_at=None,
        released_at=None,
        failure="",
        manifest=lines,
    )


def line(*, expected: Sum = TEN, known: Sum = Sum(), loaded: Sum = TEN) -> Line:  # noqa: B008 - frozen
    """One partner and currency of a manifest."""
    return Line("AB", "CZK", expected, known, loaded)


def final(category: Category, total: Sum = TEN, *, twice: bool = False, partner: str = "AB") -> Final:
    """Where items of batch 1 are."""
    return Final(1, partner, "CZK", category, twice, total)


def judge(batches: list[Batch], finals: list[Final], duplicates: tuple[str, ...] = ()) -> Balance:
    """The balance of 30 November."""
    return balance(batches, finals, duplicates, date_text="2026-11-30")


@pytest.mark.parametrize("category", [Category.DELIVERED, Category.DEAD, Category.CANCELLED])
def test_a_day_whose_items_have_all_come_to_an_end_is_closed(category: Category) -> None:
    """Delivered, dead and cancelled items need nobody: exit 0 and nothing to say."""
    found = judge([batch(line())], [final(category)])
    assert (found.verdict, found.verdict.exit_code, found.problems) == (Verdict.CLOSED, 0, ())
    assert all(row.in_balance for row in (*found.batches, *found.summary))


@pytest.mark.parametrize("category", [Category.OPEN, Category.RETRYING, Category.UNKNOWN])
def test_an_item_that_may_still_move_keeps_the_day_open(category: Category) -> None:
    """Open, retrying and unknown items are said with count and amount: exit 1."""
    found = judge([batch(line())], [final(category)])
    assert (found.verdict, found.verdict.exit_code) == (Verdict.OPEN, 1)
    assert found.problems == (f"AB: {category} 10 (1234.56 CZK)",)


def test_one_cent_less_in_the_record_is_out_of_balance() -> None:
    """The final sum differs by one minor unit: batch line, partner line and total say so, exit 2."""
    found = judge([batch(line())], [final(Category.DELIVERED, Sum(10, 123_455))])
    assert (found.verdict, found.verdict.exit_code) == (Verdict.OUT_OF_BALANCE, 2)
    assert not any(row.in_balance for row in (*found.batches, *found.summary))
    assert "1234.56" in found.problems[0]
    assert "1234.55" in found.problems[0]


def test_one_cent_less_loaded_than_the_source_held_is_out_of_balance() -> None:
    """Manifest against loaded: the summary agrees with itself and the day still doesn't balance."""
    found = judge([batch(line(expected=Sum(10, 123_457)))], [final(Category.DELIVERED)])
    assert found.verdict is Verdict.OUT_OF_BALANCE
    assert not found.batches[0].in_balance


def test_rows_known_before_are_part_of_what_the_source_held() -> None:
    """Expected is loaded plus already known, count and amount."""
    known = line(expected=Sum(12, 123_500), known=Sum(2, 44))
    assert judge([batch(known)], [final(Category.DELIVERED)]).verdict is Verdict.CLOSED
    short = line(expected=Sum(12, 123_500), known=Sum(2, 43))
    assert judge([batch(short)], [final(Category.DELIVERED)]).verdict is Verdict.OUT_OF_BALANCE


@pytest.mark.parametrize("state", ["running", "failed"])
def test_a_batch_that_was_not_released_is_out_of_balance(state: str) -> None:
    """It is named with its state, unless a later revision took its place."""
    found = judge([batch(state=state)], [])
    assert found.verdict is Verdict.OUT_OF_BALANCE
    assert found.problems == (f"batch payment-orders r1 is {state}",)
    assert judge([replace(batch(state=state), superseded=True)], []).verdict is Verdict.CLOSED


def test_items_of_a_failed_batch_are_out_of_balance() -> None:
    """Nothing of a failed batch may be in the record, superseded or not."""
    failed = replace(batch(line(), state="failed"), superseded=True)
    assert judge([failed], [final(Category.DELIVERED)]).verdict is Verdict.OUT_OF_BALANCE


def test_a_held_batch_keeps_the_day_open() -> None:
    """Even one of zero rows: somebody has to let it go."""
    assert judge([batch(state="held")], []).problems == ("batch payment-orders r1 is held",)
    assert judge([batch(state="held")], []).verdict is Verdict.OPEN


def test_a_day_without_a_batch_is_open_and_says_so() -> None:
    """No batch is no proof that nothing was due."""
    found = judge([], [])
    assert (found.verdict, found.problems) == (Verdict.OPEN, ("no batch for 2026-11-30",))


def test_a_released_batch_of_zero_rows_is_closed_and_has_a_line() -> None:
    """Nothing was due, and the batch still shows in the second file."""
    found = judge([batch()], [])
    assert found.verdict is Verdict.CLOSED
    assert [(row.partner, row.in_balance) for row in found.batches] == [("", True)]


def test_items_for_a_partner_that_the_manifest_lacks_are_out_of_balance() -> None:
    """A final line without a manifest line is shown, not dropped."""
    found = judge([batch(line())], [final(Category.DELIVERED), final(Category.DELIVERED, partner="CD")])
    assert found.verdict is Verdict.OUT_OF_BALANCE
    assert [(row.partner, row.loaded, row.in_balance) for row in found.batches] == [
        ("AB", TEN, True),
        ("CD", Sum(), False),
    ]


def test_an_event_with_two_deliveries_is_out_of_balance() -> None:
    """It is named by its key."""
    found = judge([batch(line())], [final(Category.DELIVERED)], ("payment-orders:7",))
    assert found.verdict is Verdict.OUT_OF_BALANCE
    assert found.problems == ("payment-orders:7 has more than one delivery",)


def test_other_ids_than_the_manifest_saw_are_out_of_balance() -> None:
    """Same count, same sum, another id: the hash finds it; where there is none to compare nothing is said."""
    swapped = replace(batch(line()), found_ids_sha256="cd")
    assert judge([swapped], [final(Category.DELIVERED)]).verdict is Verdict.OUT_OF_BALANCE
    unknown = replace(batch(line()), found_ids_sha256="")
    assert judge([unknown], [final(Category.DELIVERED)]).verdict is Verdict.CLOSED


def test_a_batch_that_contradicts_its_own_lines_is_out_of_balance() -> None:
    """The batch row's counts are compared with the sum of its lines."""
    wrong = replace(batch(line()), expected_count=11)
    assert judge([wrong], [final(Category.DELIVERED)]).verdict is Verdict.OUT_OF_BALANCE


def test_the_summary_is_disjoint_and_ends_with_a_total_for_each_currency() -> None:
    """Categories add up to the batch; possible duplicates are counted of these, not beside them."""
    three, seven = Sum(3, 23_456), Sum(7, 100_000)
    found = judge(
        [batch(line())], [final(Category.DELIVERED, seven, twice=True), final(Category.DEAD, three)]
    )
    assert [(row.partner, row.currency) for row in found.summary] == [("AB", "CZK"), (None, "CZK")]
    for row in found.summary:
        assert row.batch == sum(row.categories.values(), Sum()) == TEN
        assert (row.categories[Category.DELIVERED], row.categories[Category.DEAD]) == (seven, three)
        assert row.possible_duplicates == seven
