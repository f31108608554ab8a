from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pykubelet.base.api.quantity import (
    CAP,
    NANO,
    Amount,
    Format,
    QuantityError,
    canonical,
    milli_value,
    page_resource,
    page_size,
    page_size_name,
    parse,
    value,
)


@pytest.mark.parametrize(
    ("text", "units", "millis", "written"),
    [
        ("0", 0, 0, "0"),
        ("1", 1, 1000, "1"),
        ("0.5", 1, 500, "500m"),
        ("100m", 1, 100, "100m"),
        ("1500m", 2, 1500, "1500m"),
        ("1000m", 1, 1000, "1"),
        ("-1.5", -2, -1500, "-1500m"),
        ("128Mi", 134217728, 134217728000, "128Mi"),
        ("0.5Mi", 524288, 524288000, "512Ki"),
        ("1.5Gi", 1610612736, 1610612736000, "1536Mi"),
        ("1024", 1024, 1024000, "1024"),
        ("1023Ki", 1047552, 1047552000, "1023Ki"),
        ("500Ki", 512000, 512000000, "500Ki"),
        ("0.1Ki", 103, 102400, "102400m"),
        ("1e3", 1000, 1000000, "1e3"),
        ("1E3", 1000, 1000000, "1e3"),
        ("12e-1", 2, 1200, "1200e-3"),
        ("1E", 10**18, 10**21, "1E"),
        ("100k", 100000, 10**8, "100k"),
        ("5u", 1, 1, "5u"),
        ("3n", 1, 1, "3n"),
        ("0.1n", 1, 1, "1n"),
        ("1e30", (1 << 63) - 1, ((1 << 63) - 1) * 1000, "9223372036854775807"),
        ("8Ei", (1 << 63) - 1, ((1 << 63) - 1) * 1000, "9223372036854775807"),
        (".5", 1, 500, "500m"),
        ("5.", 5, 5000, "5"),
        ("+2Ti", 2 << 40, (2 << 40) * 1000, "2Ti"),
    ],
)
def test_reads_and_writes_like_kubernetes(text: str, units: int, millis: int, written: str) -> None:
    amount = parse(text)
    assert (amount.value(), amount.milli_value()) == (units, millis)
    if text != "1e30":  # an exponent past the cap keeps its family
        assert str(amount) == written


@pytest.mark.parametrize("text", ["", ".", "-", "1.2.3", "Mi", " 1", "1 Mi", "٣"])
def test_refuses_what_is_no_number(text: str) -> None:
    with pytest.raises(QuantityError, match="quantities must match the regular expression"):
        parse(text)


@pytest.mark.parametrize("text", ["1Kib", "1ki", "1K", "1mi", "1e", "1Ee3", "1MM"])
def test_refuses_unknown_suffixes(text: str) -> None:
    with pytest.raises(QuantityError):
        parse(text)


def test_bare_numbers_of_yaml() -> None:
    assert (value(2), milli_value(0.5), value(None), canonical(0.25)) == (2, 500, 0, "250m")
    assert value(1e22) == (1 << 63) - 1


def test_sums_keep_the_family_of_the_first() -> None:
    assert str(parse("1Gi") + parse("1G")) == "2073741824"
    assert str(parse("0") + parse("1Gi")) == "1Gi"
    assert str(parse("1") - parse("250m")) == "750m"
    assert parse("1Ki") > parse("1k")
    assert parse("1000m") <= parse("1") <= parse("1000m")


suffixes = st.sampled_from(["", "n", "u", "m", "k", "M", "G", "Ki", "Mi", "Gi", "e3", "E-3"])
SCALE = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "e3": 3, "E-3": -3}


@given(st.integers(-(10**6), 10**6), st.text("0123456789", max_size=3), suffixes)
def test_value_is_exact_and_spelling_comes_back(whole: int, fraction: str, suffix: str) -> None:
    text = f"{whole}.{fraction}{suffix}" if fraction else f"{whole}{suffix}"
    amount = parse(text)
    exact = Fraction(f"{whole}.{fraction or '0'}")
    exact *= Fraction(10) ** SCALE[suffix] if suffix in SCALE else 1024 ** ("KMG".index(suffix[0]) + 1)
    assert 0 <= abs(amount.nano) - abs(exact * NANO) < 1
    again = parse(str(amount))
    if amount.format is not Format.BINARY_SI or amount.nano % NANO == 0 or abs(amount.nano) < 1024 * NANO:
        assert again.nano == amount.nano
    if again.format is amount.format:  # bytes that no power of 1024 divides are written bare, and read again as decimal
        assert str(again) == str(amount)


@given(st.integers(-CAP, CAP), st.integers(-CAP, CAP))
def test_order_is_that_of_the_numbers(left: int, right: int) -> None:
    a, b = Amount(left), Amount(right, Format.BINARY_SI)
    assert (a < b, a <= b, a > b, a >= b) == (left < right, left <= right, left > right, left >= right)
    assert (a + b).nano == left + right


@given(st.integers(-(10**15), 10**15))
def test_rounding_is_away_from_zero(nano: int) -> None:
    amount = Amount(nano)
    assert abs(amount.value()) == -(-abs(nano) // NANO)
    assert abs(amount.milli_value()) == -(-abs(nano) // 1_000_000)
    assert amount.rounded_to_milli().nano % 1_000_000 == 0


GIB = 1 << 30


@pytest.mark.parametrize(
    ("size", "kernel", "resource"),
    [
        (64 << 10, "64KB", "hugepages-64Ki"),
        (2 << 20, "2MB", "hugepages-2Mi"),
        (GIB, "1GB", "hugepages-1Gi"),
        (16 * GIB, "16GB", "hugepages-16Gi"),
        (1000, "1000B", "hugepages-1000"),
    ],
)
def test_names_of_page_sizes(size: int, kernel: str, resource: str) -> None:
    assert page_size_name(size) == kernel
    assert page_resource(size) == resource
    assert page_size(resource) == size


@pytest.mark.parametrize(
    "resource", ["memory", "hugepages-", "hugepages-odd", "hugepages-0", "example.com/hugepages-2Mi"]
)
def test_what_names_no_page_size(resource: str) -> None:
    assert page_size(resource) is None
