"""A route's body: put together from what came, number by number as it was spelled."""

from __future__ import annotations

import json
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines.reshape import MOST_RESHAPED, Reshape, Unfit

NUMBERS = [
    "0.10", "0.1", "-0", "-0.0", "1e5", "1E+5", "1.0e-7", "12345678901234567890123456789.10", "9007199254740993",
    "0.1000000000000000055511151231257827", "1e400", "1e9999999999999999999999", "9" * 5_000,
]  # fmt: skip

numbers = st.from_regex(r"-?(0|[1-9][0-9]{0,40})(\.[0-9]{1,30})?([eE][+-]?[0-9]{1,3})?", fullmatch=True)


@pytest.mark.parametrize("number", NUMBERS)
def test_numbers_keep_their_spelling(number: str) -> None:
    """Not a digit, sign, zero or exponent changes: in a value, in a text made of it, in a constant of the route."""
    payload = f'{{"order": {{"amount": {number}}}}}'.encode()
    assert Reshape("{a: order.amount}")(payload) == f'{{"a":{number}}}'.encode()
    assert Reshape("to_string(order.amount)")(payload) == f'"{number}"'.encode()
    if len(number) < 4_300:  # more digits Python's own reader of the expression does not take
        assert Reshape(f"{{a: `{number}`}}")(payload) == f'{{"a":{number}}}'.encode()


@given(st.lists(numbers))
def test_any_number_keeps_its_spelling(spelled: list[str]) -> None:
    """What goes through the expression untouched comes out as the same text."""
    text = f"[{','.join(spelled)}]"
    assert Reshape("amounts")(f'{{"amounts":{text}}}'.encode()) == text.encode()


@given(
    st.recursive(
        st.none() | st.booleans() | st.text() | st.integers(),
        lambda inner: st.lists(inner, min_size=1) | st.dictionaries(st.text(), inner, min_size=1),
    ).filter(lambda value: value is not None)
)
def test_what_is_taken_whole_stays_what_it_is(value: object) -> None:
    """`@` gives the same JSON back, every key and every character, the same bytes each time."""
    payload = json.dumps(value).encode()
    once = Reshape("@")(payload)
    assert isinstance(once, bytes)
    assert json.loads(once) == value
    assert once == Reshape("@")(payload) == Reshape("@")(once)


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("items[?price > `1.50`].id", b'["b"]'),
        ("items[?price == `1.5`].id", b'["a"]'),  # 1.50 is 1.5, 0.30 is not 0.1 + 0.2
        ("items[?price == `1.50` || price == `0`].id", b'["a"]'),
        ("max(items[].price)", b"10.0"),
        ("max_by(items, &price).id", b'"b"'),
        ("sort_by(items, &price)[].price", b"[1.50,10.0]"),
        ("to_number('0.10')", b"0.10"),
        ("to_number('0x10') || 'no'", b'"no"'),
        ("type(items[0].price)", b'"number"'),
        ("[length(items), length(items[0].id)]", b"[2,1]"),
        ("to_string(items[0])", b'"{\\"id\\":\\"a\\",\\"price\\":1.50}"'),
        ("{z: items[0].id, a: missing}", b'{"z":"a","a":null}'),
        ('{a: `"a\\`b"`}', b'{"a":"a`b"}'),
        ("merge(items[0], {id: 'n'})", b'{"id":"n","price":1.50}'),
    ],
)
def test_jmespath_over_exact_numbers(expression: str, expected: bytes) -> None:
    """Filters, orders and functions see the exact values; keys come in the order of the expression."""
    payload = b'{"items": [{"id": "a", "price": 1.50}, {"id": "b", "price": 10.0}]}'
    assert Reshape(expression)(payload) == expected


def test_text_goes_out_as_utf_8() -> None:
    """Text is UTF-8, not escapes; half of a character stays the escape that it was; NUL stays escaped."""
    payload = '{"t": "žluť\\u00e9\\ud83d\\ude00", "half": "\\ud83d", "nul": "\\u0000"}'.encode()
    assert Reshape("[t, half, nul]")(payload) == '["žluťé😀","\\ud83d","\\u0000"]'.encode()


@pytest.mark.parametrize(
    ("payload", "why"),
    [
        (b"", "not JSON"),
        (b"<order/>", "not JSON"),
        (b"\xff\xfe", "not JSON"),
        (b'\xef\xbb\xbf{"a": 1}', "not JSON"),
        (b'{"a": NaN}', "not JSON"),
        (b'{"a": Infinity}', "not JSON"),
        (b'{"a": 1} x', "not JSON"),
        (b'{"a": 1, "a": 1}', "twice"),
        (b'{"a": {"b": 1, "\\u0062": 2}}', "twice"),
        (b"[" * 30_000 + b"]" * 30_000, "deep"),
        (b'{"a":' * 10_000 + b"1" + b"}" * 10_000, "deep"),
        (b'{"b": 1}', "nothing"),
        (b'{"a": null}', "nothing"),
        (b"3", "nothing"),
    ],
)
def test_no_body_out_of_what_is_not_fit(payload: bytes, why: str) -> None:
    """What is no JSON, ambiguous, too deep or has nothing to find is said in words, never sent empty or half."""
    unfit = Reshape("a")(payload)
    assert isinstance(unfit, Unfit)
    assert why in unfit.why


def test_a_mistake_in_the_payload_shows_nothing_of_it() -> None:
    """A type that a function cannot take is a problem whose words hold no value of the payload."""
    unfit = Reshape("join(',', account)")(b'{"account": "CZ6508000000192000145399"}')
    assert unfit == Unfit("body: the expression does not fit this payload")
    assert isinstance(Reshape("&a")(b'{"a": 1}'), Unfit)


def test_numbers_are_compared_with_numbers_only() -> None:
    """1 and 1.0 are one number, "1" and true are something else, and no text is smaller than a number."""
    payload = b'{"a": [1, 1.0, "1", true, null, 10e-1]}'
    assert Reshape("a[?@ == `1`]")(payload) == b"[1,1.0,10e-1]"
    assert Reshape("a[?@ == '1']")(payload) == b'["1"]'
    assert Reshape("[contains(a, `1.00`), contains(a, `2`)]")(payload) == b"[true,false]"
    assert isinstance(Reshape("a[?@ < '2']")(payload), Unfit)


@pytest.mark.parametrize(
    ("expression", "why"),
    [
        ("a.[", "Incomplete"),
        ("a.sum(items[].price)", "calculates"),
        ("items[?abs(x) > `1`]", "calculates"),
        ("to_strin(a)", "did you mean to_string"),
    ],
)
def test_an_expression_is_checked_beforehand(expression: str, why: str) -> None:
    """Syntax, unknown functions and those that calculate are mistakes of the route, not of each event."""
    with pytest.raises(ValueError, match=why):
        Reshape(expression)


def test_other_expressions_of_the_process_are_left_alone() -> None:
    """The exact constants do not leak into jmespath's shared cache: a `success` expression reads plain numbers."""
    import jmespath

    Reshape("a == `0.5`")
    assert jmespath.search("a == `0.5`", {"a": 0.5}) is True
    assert jmespath.search("`0.5`", {}) == 0.5
    assert type(jmespath.search("`0.5`", {})) is not Decimal


def test_a_payload_too_large_to_reshape_is_said_so() -> None:
    """One sender's megabytes must not keep other events of a router's step waiting."""
    room = MOST_RESHAPED - len(b'{"a":""}')
    assert Reshape("a")(b'{"a":"%b"}' % (b"x" * room)) == b'"%b"' % (b"x" * room)
    assert Reshape("a")(b'{"a":"%b"}' % (b"x" * (room + 1))) == Unfit(
        "body: the payload is longer than 65,536 bytes"
    )
