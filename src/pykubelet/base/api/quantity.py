"""Resource quantities, parsed, compared and written exactly as Kubernetes does, and lists of them by resource. Pure.

Owns: parsing of every suffix, exact integer arithmetic, the canonical spelling. An amount is a whole number of
nano-units: finer input is rounded away from zero, and magnitudes beyond 2^63-1 are capped, as in the reference.

Of each resource, a pod needs the larger of two amounts: the sum over its containers and all restartable init containers, and the
highest need during its start (one init container together with the restartable ones before it).
Source: apimachinery's `resource.Quantity` (documented in the API reference, "Quantity"); KEP-753 (sidecar containers),
component-helpers' `AggregateContainerRequests`; the Kubernetes documentation "Manage HugePages", the kernel's cgroup documents (hugetlb).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from enum import Enum
from functools import lru_cache

from pykubelet.base.api.core import Container, PodSpec, Quantity
from pykubelet.base.api.labels import qualified_name_errors
from pykubelet.base.kit.values import Value

NANO = 1_000_000_000
MILLI_IN_NANO = 1_000_000
CAP = ((1 << 63) - 1) * NANO

#: The most characters of a quantity. The API server writes about 30 at most; Python refuses numbers of more than 4300 digits.
MAX_LENGTH = 256
LENGTH_ERROR = f"quantities must have at most {MAX_LENGTH} characters"
FORMAT_ERROR = "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"
SUFFIX_ERROR = "unable to parse quantity's suffix"

_SHAPE = re.compile(r"([+-]?)(\d*)(?:\.(\d*))?((?:[eEinumkKMGTP]+[-+]?\d*|[-+]\d*)?)", re.ASCII)
_DECIMAL = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_DECIMAL_NAMES = {power: name for name, power in _DECIMAL.items()}
_BINARY = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50, "Ei": 60}
_BINARY_NAMES = ("", *_BINARY)


class QuantityError(ValueError):
    """The text is not a quantity. The message is the reference's, except for the limit of the length."""


class Format(Enum):
    """The family of suffixes that an amount is written with."""

    DECIMAL_SI = "DecimalSI"
    BINARY_SI = "BinarySI"
    DECIMAL_EXPONENT = "DecimalExponent"


def _divide_away(value: int, by: int) -> int:
    """Divide, and round away from zero."""
    quotient = -(-abs(value) // by)
    return quotient if value >= 0 else -quotient


class Amount(Value):
    """A quantity: `nano` billionths of the unit, written in the family `format`.

    `==` also compares the family; to compare only amounts, use the order operators or `nano`.
    """

    nano: int
    format: Format = Format.DECIMAL_SI

    def value(self) -> int:
        """Whole units, rounded away from zero."""
        return _divide_away(self.nano, NANO)

    def milli_value(self) -> int:
        """Thousandths, rounded away from zero."""
        return _divide_away(self.nano, MILLI_IN_NANO)

    def rounded_to_milli(self) -> Amount:
        """The amount rounded to thousandths, as the API server stores resource lists."""
        return Amount(self.milli_value() * MILLI_IN_NANO, self.format)

    def __lt__(self, other: Amount) -> bool:
        return self.nano < other.nano

    def __le__(self, other: Amount) -> bool:
        return self.nano <= other.nano

    def __gt__(self, other: Amount) -> bool:
        return self.nano > other.nano

    def __ge__(self, other: Amount) -> bool:
        return self.nano >= other.nano

    def __add__(self, other: Amount) -> Amount:
        return Amount(self.nano + other.nano, other.format if self.nano == 0 else self.format)

    def __sub__(self, other: Amount) -> Amount:
        return Amount(self.nano - other.nano, other.format if self.nano == 0 else self.format)

    def __str__(self) -> str:
        """The canonical spelling: no fraction, and the largest suffix that keeps the exact value."""
        if self.nano == 0:
            return "0"
        if self.format is Format.BINARY_SI and abs(self.nano) >= 1024 * NANO:
            units, step = self.value(), 0
            while step < 6 and units % 1024 == 0:
                units, step = units // 1024, step + 1
            return f"{units}{_BINARY_NAMES[step]}"
        digits, power = self.nano, -9
        while digits % 1000 == 0 and power < 18:
            digits, power = digits // 1000, power + 3
        if self.format is Format.DECIMAL_EXPONENT:
            return f"{digits}e{power}" if power else str(digits)
        return f"{digits}{_DECIMAL_NAMES[power]}"


class Parts(Value):
    """A quantity as it is written: the digits before and after the point, and what the suffix means."""

    negative: bool
    whole: str
    fraction: str
    format: Format
    power: int
    shift: int


def split_text(text: str) -> Parts:
    """The parts of `text`. Raises QuantityError if it is not a quantity."""
    if len(text) > MAX_LENGTH:
        raise QuantityError(LENGTH_ERROR)
    match = _SHAPE.fullmatch(text)
    if match is None or not (match[2] or match[3]):
        raise QuantityError(FORMAT_ERROR)
    return Parts(match[1] == "-", match[2], match[3] or "", *_read_suffix(match[4]))


@lru_cache(maxsize=2048)
def parse_text(text: str) -> Amount:
    """Parse `text`. Raises QuantityError if it is not a quantity."""
    parts = split_text(text)
    format_ = parts.format
    mantissa = int((parts.whole + parts.fraction) or "0") << parts.shift
    power = parts.power + 9 - len(parts.fraction)
    if power >= 0:
        # A power of 64 reaches the cap below already.
        nano = mantissa * 10 ** min(power, 64)
    else:
        nano = _divide_away(mantissa, 10 ** min(-power, len(str(mantissa)) + 1))
    nano = min(nano, CAP)
    if format_ is Format.BINARY_SI and 0 < nano < NANO:
        format_ = Format.DECIMAL_SI
    return Amount(-nano if parts.negative else nano, format_)


def _read_suffix(suffix: str) -> tuple[Format, int, int]:
    """The family, the power of ten and the power of two of a suffix."""
    if suffix in _DECIMAL:
        return Format.DECIMAL_SI, _DECIMAL[suffix], 0
    if suffix in _BINARY:
        return Format.BINARY_SI, 0, _BINARY[suffix]
    if suffix[:1] in ("e", "E") and re.fullmatch(r"[+-]?\d{1,18}", suffix[1:], re.ASCII):
        return Format.DECIMAL_EXPONENT, int(suffix[1:]), 0
    raise QuantityError(SUFFIX_ERROR)


def parse(quantity: Quantity) -> Amount:
    """Parse a quantity field: text, or a bare number from YAML or JSON."""
    return parse_text(quantity if isinstance(quantity, str) else repr(quantity))


def canonical(quantity: Quantity) -> str:
    """The field's amount in its canonical spelling, as the API server shows it."""
    return str(parse(quantity))


def value(quantity: Quantity | None) -> int:
    """Whole units (bytes, pieces), rounded up; 0 for None."""
    return 0 if quantity is None else parse(quantity).value()


def milli_value(quantity: Quantity | None) -> int:
    """Thousandths (millicores), rounded up; 0 for None."""
    return 0 if quantity is None else parse(quantity).milli_value()


# Huge pages

HUGE_PAGES = "hugepages-"
_BINARY_UNITS = ((1 << 30, "Gi"), (1 << 20, "Mi"), (1 << 10, "Ki"))
_KERNEL_UNITS = ("B", "KB", "MB", "GB", "TB", "PB")


def page_size(resource: str) -> int | None:
    """The page size in bytes of a resource like `hugepages-2Mi`; None for other resources and unreadable sizes."""
    if not resource.startswith(HUGE_PAGES):
        return None
    try:
        size = parse_text(resource.removeprefix(HUGE_PAGES)).value()
    except QuantityError:
        return None
    return size if size > 0 else None


def page_resource(size: int) -> str:
    """The resource name for pages of `size` bytes: `hugepages-2Mi`."""
    for unit, name in _BINARY_UNITS:
        if size % unit == 0:
            return f"{HUGE_PAGES}{size // unit}{name}"
    return f"{HUGE_PAGES}{size}"


def page_size_name(size: int) -> str:
    """`size` bytes as the kernel's control files spell them: `2MB`, `1GB`."""
    unit = 0
    while size and size % 1024 == 0 and unit < len(_KERNEL_UNITS) - 1:
        size //= 1024
        unit += 1
    return f"{size}{_KERNEL_UNITS[unit]}"


# Lists of amounts by resource

_QUOTA_PREFIX = "requests."
POD_LEVEL = frozenset({"cpu", "memory"})
_ZERO = Amount(0)
_IN_DECIMAL = frozenset({"cpu", "pods", "pid"})


def is_native(name: str) -> bool:
    """Whether Kubernetes itself defines the resource: its name has no domain, or that of kubernetes.io."""
    return "/" not in name or "kubernetes.io/" in name


def is_extended(name: str) -> bool:
    """Whether it is an extended resource: its name has a domain of its own."""
    if is_native(name) or name.startswith(_QUOTA_PREFIX):
        return False
    return not qualified_name_errors(_QUOTA_PREFIX + name)


def is_pod_level(resource: str) -> bool:
    """Whether `spec.resources` of a pod may list the resource (KEP-2837)."""
    return resource in POD_LEVEL or resource.startswith(HUGE_PAGES)


def in_units(amounts: Mapping[str, Amount]) -> dict[str, int]:
    """The amounts in the node's units: `cpu` in milli, the others in whole bytes or pieces, rounded up."""
    return {name: amount.milli_value() if name == "cpu" else amount.value() for name, amount in amounts.items()}


def format_units(resource: str, amount: int) -> str:
    """Format an amount in the units of `in_units` as a quantity: bytes with binary suffixes, others with decimal ones."""
    nano = amount * (MILLI_IN_NANO if resource == "cpu" else NANO)
    return str(Amount(nano, Format.DECIMAL_SI if resource in _IN_DECIMAL else Format.BINARY_SI))


def _requests(container: Container) -> Mapping[str, Quantity]:
    return container.resources.requests if container.resources else {}


def _limits(container: Container) -> Mapping[str, Quantity]:
    return container.resources.limits if container.resources else {}


def _add(into: dict[str, Amount], more: Mapping[str, Amount]) -> None:
    for name, amount in more.items():
        into[name] = into[name] + amount if name in into else amount


def _sum(spec: PodSpec, listed: Callable[[Container], Mapping[str, Quantity]]) -> dict[str, Amount]:
    total: dict[str, Amount] = {}
    for container in spec.containers:
        _add(total, {name: parse(quantity) for name, quantity in listed(container).items()})
    sidecars: dict[str, Amount] = {}
    start_up: dict[str, Amount] = {}
    for container in spec.initContainers:
        own = {name: parse(quantity) for name, quantity in listed(container).items()}
        if container.restartPolicy == "Always":
            _add(total, own)
            _add(sidecars, own)
            continue
        for name, amount in own.items():  # what only the sidecars need is in the total
            moment = amount + sidecars.get(name, _ZERO)
            start_up[name] = max(start_up.get(name, _ZERO), moment, key=lambda item: item.nano)
    for name, amount in start_up.items():
        total[name] = max(total.get(name, _ZERO), amount, key=lambda item: item.nano)
    return total


def sum_container_requests(spec: PodSpec) -> dict[str, Amount]:
    """The requests of a pod's containers together, by resource. Raises QuantityError for an unreadable amount."""
    return _sum(spec, _requests)


def sum_container_limits(spec: PodSpec) -> dict[str, Amount]:
    """The limits of a pod's containers together, by resource; containers without a limit are left out."""
    return _sum(spec, _limits)
