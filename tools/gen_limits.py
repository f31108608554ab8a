"""Generates the table of ``docs/limits.md`` from the code: every constant and default that limits time, size, number or rate.

A constant belongs to it by its name (`is_limit`). Its meaning is the `#:` comment above it, or else its name in words; its unit follows
from the name and from how the value is written. Of the classes named `...Limits` and `...Periods`, the defaults of fields are taken.

Usage: ``python tools/gen_limits.py`` writes the page anew. ``tests/test_limits.py`` fails while it is not current.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

CHECKOUT = Path(__file__).parents[1]
SRC = CHECKOUT / "src" / "pykubelet"
PAGE = CHECKOUT / "docs" / "limits.md"
BEGIN, END = "<!-- begin of the generated tables -->", "<!-- end of the generated tables -->"
#: Doubles. The programs beside the agent are other packages, and are left out too.
LEFT_OUT = ("testing",)
#: Words of names that mean a limit, between underscores.
WORDS = frozenset((
    "MAX", "MIN", "MOST", "LIMIT", "LONGEST", "LARGEST", "DEADLINE", "TIMEOUT", "TIMEOUTS", "CAP", "BYTES",
    "ONCE", "KEPT", "BURST", "QPS", "TRIES", "CONNECTIONS", "THREADS", "BACKLOG", "DEPTH", "PIECE", "BLOCK",
    "MANY", "HEAVY", "REMEMBERED", "MEMORY", "SLOTS", "ATTEMPTS", "REDIRECTS", "RETRY", "RESTART",
    "RECONNECT", "PAUSE", "PERIOD", "IDLE", "S",
))  # fmt: skip
#: Values at which a type ends, not the agent's patience or memory.
ENDS_OF_TYPES = frozenset(2**bits - less for bits in (31, 32, 62, 63, 64) for less in (0, 1))
#: Sizes of the kernel's structs.
NO_LIMITS = frozenset({"_STATFS_BYTES", "_SIGEVENT_BYTES", "_SIGACTION_BYTES"})
Number = int | float


@dataclass(frozen=True)
class Backoff:
    """A delay that grows from the first to the last number of seconds."""

    first: Number
    last: Number


@dataclass(frozen=True)
class Limit:
    """One row: its module below `src/pykubelet`, its name in the code, value as a page shows it, and meaning."""

    module: str
    name: str
    value: str
    meaning: str

    @property
    def package(self) -> str:
        """The package of a layer, such as `provide/volumes`."""
        return "/".join(self.module.split("/")[:-1][:2])


def is_limit(name: str) -> bool:
    """Whether a constant of this name limits something."""
    return name.isupper() and name not in NO_LIMITS and not WORDS.isdisjoint(name.strip("_").split("_"))


def limits() -> list[Limit]:
    """All limits of the agent, by module and place in it."""
    paths = sorted(path for path in SRC.rglob("*.py") if not path.name.endswith("_pb2.py"))
    modules = ((str(path.relative_to(SRC)), path) for path in paths)
    return [
        limit
        for name, path in modules
        if name.partition("/")[0] not in LEFT_OUT
        for limit in limits_of(name, path.read_text())
    ]


def limits_of(module: str, text: str) -> Iterator[Limit]:
    """The limits of one module."""
    lines, known = text.splitlines(), dict[str, Number]()
    for node in ast.parse(text).body:
        if isinstance(node, ast.ClassDef) and re.fullmatch(r"\w*(Limits|Periods)", node.name):
            yield from _fields(module, node, known)
        name, value = _assignment(node)
        number = _value(value, known) if value is not None else None
        if number is None:
            continue
        if not isinstance(number, Backoff):
            known[name] = number
        if is_limit(name) and number not in ENDS_OF_TYPES:
            meaning = _comment(lines, node.lineno - 1) or _words(name, module)
            yield Limit(module, name, shown(name, number, ast.unparse(value) if value else ""), meaning)


def _fields(module: str, node: ast.ClassDef, known: Mapping[str, Number]) -> Iterator[Limit]:
    """The defaults of a class of limits. The meaning of each is in its docstring; the row has the name in words."""
    for part in node.body:
        name, value = _assignment(part)
        number = _value(value, known) if value is not None else None
        if number is None or isinstance(number, bool) or number in ENDS_OF_TYPES or number == 0:
            continue
        unit = f"{name}_S" if node.name.endswith("Periods") else name.upper()
        yield Limit(
            module,
            f"{node.name}.{name}",
            shown(unit, number, ast.unparse(value) if value else ""),
            _words(name, module),
        )


def _assignment(node: ast.stmt) -> tuple[str, ast.expr | None]:
    match node:
        case ast.Assign(targets=[ast.Name(id=name)], value=value):
            return name, value
        case ast.AnnAssign(target=ast.Name(id=name), value=value):
            return name, value
        case _:
            return "", None


def _value(node: ast.expr, known: Mapping[str, Number]) -> Number | Backoff | None:
    """The number, or None for anything else. Names stand for constants of the module that came before."""
    match node:
        case ast.Constant(value=bool()):
            return None
        case ast.Constant(value=int() | float() as value):
            return value
        case ast.Name(id=name):
            return known.get(name)
        case ast.BinOp(left=left, op=op, right=right):
            a, b = _value(left, known), _value(right, known)
            if a is None or b is None or isinstance(a, Backoff) or isinstance(b, Backoff):
                return None
            return _computed(a, op, b)
        case ast.Call(func=ast.Name(id="BackoffPolicy"), args=args, keywords=keywords):
            given = {word.arg: _value(word.value, known) for word in keywords}
            given |= {name: _value(arg, known) for name, arg in zip(("initial_s", "cap_s"), args, strict=False)}
            first, last = given.get("initial_s"), given.get("cap_s")
            if isinstance(first, int | float) and isinstance(last, int | float):
                return Backoff(first, last)
    return None


def _computed(left: Number, op: ast.operator, right: Number) -> Number | None:
    match op:
        case ast.Add():
            return left + right
        case ast.Sub():
            return left - right
        case ast.Mult():
            return left * right
        case ast.LShift() if isinstance(left, int) and isinstance(right, int):
            return left << right
        case ast.Pow() if isinstance(left, int) and isinstance(right, int):
            return int(left**right)
        case _:
            return None


def shown(name: str, value: Number | Backoff, source: str) -> str:
    """The value with its unit. `source`: how the code writes it; a size is named as bytes, or is written with `<<` or `* 1024`."""
    words = name.upper().strip("_").split("_")
    if isinstance(value, Backoff):
        return f"{_duration(value.first)}, growing to {_duration(value.last)}"
    if words[-2:] == ["PER", "S"]:
        return f"{value:g} a second"
    if words[-1] == "S":
        return _duration(value)
    if isinstance(value, int) and ("BYTES" in words or "<<" in source or "* 1024" in source):
        return _size(value)
    return f"{value:,}"


def _duration(seconds: Number) -> str:
    for unit, name in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= 2 * unit and seconds % unit == 0:
            return f"{seconds // unit:g} {name}"
    return f"{seconds:g} s" if seconds >= 1 else f"{seconds * 1000:g} ms"


def _size(count: int) -> str:
    for unit, name in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if count >= unit and count % unit == 0:
            return f"{count // unit} {name}"
    return f"{count:,} bytes"


def _comment(lines: list[str], at: int) -> str:
    """The block of `#:` lines above a line, as one text without its last full stop."""
    found: list[str] = []
    while at > 0 and lines[at - 1].startswith("#:"):
        at -= 1
        found.insert(0, lines[at].removeprefix("#:").strip())
    return " ".join(found).removesuffix(".")


def _words(name: str, module: str) -> str:
    """`_MAX_FIELDS` of `net/http/tolerant.py` as "tolerant: max fields"."""
    text = re.sub(r"_S$", "", name.strip("_"), flags=re.IGNORECASE).lower()
    return f"{module.rpartition('/')[2].removesuffix('.py')}: {text}".replace("_", " ")


def tables() -> str:
    """The generated part of the page: a table for each package."""
    by_package: dict[str, list[Limit]] = {}
    for limit in limits():
        by_package.setdefault(limit.package, []).append(limit)
    head = "| What | Limit | In the code |\n| --- | --- | --- |\n"
    return "\n".join(f"### {package}\n\n{head}{''.join(map(_row, found))}" for package, found in by_package.items())


def _row(limit: Limit) -> str:
    return f"| {_cell(limit.meaning)} | {limit.value} | `{limit.name}` in `{limit.module.rpartition('/')[2]}` |\n"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def page(text: str) -> str:
    """The page with its tables made anew; what is before and after them stays."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n{tables()}\n{END}{after}"


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text()))
