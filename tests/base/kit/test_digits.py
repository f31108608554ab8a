import pytest
from hypothesis import given
from hypothesis import strategies as st

from pykubelet.base.kit.digits import parse_decimal, parse_integer


@given(st.integers(min_value=-(2**63), max_value=2**63 - 1))
def test_every_integer_of_64_bits_is_read_back(number: int) -> None:
    assert parse_integer(str(number)) == number


@pytest.mark.parametrize(
    "text", ["", "-", "+1", "--1", "-0", "007", "1.0", "9223372036854775808", "-9223372036854775809"]
)
def test_what_is_no_integer_in_its_usual_spelling_is_none(text: str) -> None:
    assert parse_integer(text) is None


@given(st.integers(min_value=0, max_value=2**63 - 1))
def test_every_number_of_63_bits_is_read_back(number: int) -> None:
    assert parse_decimal(str(number)) == number
    assert parse_decimal(str(number).encode()) == number


@pytest.mark.parametrize(
    "text", ["", " 1", "1 ", "+1", "-1", "1_0", "²", "٣", "0x1", "1.0", "1\n", "\xa01", "9" * 5000, "0" * 20]
)
def test_what_is_no_plain_number_is_none(text: str) -> None:
    assert parse_decimal(text) is None
    assert parse_decimal(text.encode()) is None


def test_a_number_above_the_highest_allowed_is_none() -> None:
    assert parse_decimal("65535", 65535) == 65535
    assert parse_decimal("65536", 65535) is None
    assert parse_decimal("9223372036854775808") is None
    assert parse_decimal("0000019999999", 65535) is None


@given(st.text(max_size=30) | st.binary(max_size=30))
def test_any_text_gives_a_number_or_none(text: str | bytes) -> None:
    number = parse_decimal(text)
    assert number is None or 0 <= number < 2**63
