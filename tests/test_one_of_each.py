"""What exists once in the code base: another back-off, token bucket, reader or writer of the same kind is refused here.

Each `Single` names the one implementation and recognizes copies by their syntax tree. A copy that has a reason gets its
module into `homes`, in the commit that gives the reason.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import pytest
from support.product import source_files

PAUSE = re.compile(r".*(pause|delay|backoff|back_off|retry_in).*|wait_s|interval_s")
DURATION_NAME = re.compile(r"_?(parse|read|format|render|print|to|from)_(go_)?(durations?|timespan|timedelta|seconds)")
GO_UNITS = {"h", "m", "s", "ms"}
LIMIT_CLASS = re.compile(r"\w*(Bucket|Throttle|RateLimit|Pace)(s|r|er)?")
YAML_READERS = re.compile(
    r"(un)?(safe_|full_)?load(_all)?|decode|compose(_all)?|parse|scan|C?(Safe|Full|Unsafe|Base)?Loader"
)
PATCH_DIRECTIVES = ("$patch", "$setElementOrder/", "$retainKeys", "$deleteFromPrimitiveList/")
Matches = Callable[[ast.AST], bool]


def is_number(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, int | float)


def name_of(node: ast.AST) -> str:
    """Of a variable or an attribute; empty for anything else."""
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""


def grows_by_power(node: ast.AST) -> bool:
    """`2 ** failures`, `factor ** n`, `pow(2, n)`; not `2**31`, and not powers of ten."""
    if not (isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow)) or is_number(node.right):
        return isinstance(node, ast.Call) and name_of(node.func) in ("pow", "exp2", "ldexp")
    return not (is_number(node.left) and getattr(node.left, "value", None) == 10)


def is_scaled_pause(node: ast.AST) -> bool:
    """`pause_s * 2`, `pause *= FACTOR`."""
    if isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Mult):
        return PAUSE.fullmatch(name_of(node.target)) is not None
    if not (isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult)):
        return False
    for operand, other in ((node.left, node.right), (node.right, node.left)):
        factor = other.value if isinstance(other, ast.Constant) else None
        grows = (isinstance(factor, int | float) and 1 < factor < 100) or "factor" in name_of(other).lower()
        if grows and PAUSE.fullmatch(name_of(operand)):
            return True
    return False


def is_rate_limit(node: ast.AST) -> bool:
    """A class named as one, or tokens that are counted."""
    if isinstance(node, ast.ClassDef):
        return LIMIT_CLASS.fullmatch(node.name) is not None
    return isinstance(node, ast.AugAssign) and name_of(node.target).endswith(("tokens", "free_at"))


def reads_yaml(node: ast.AST) -> bool:
    if isinstance(node, ast.Import):
        return any(alias.name == "yaml" and alias.asname for alias in node.names)
    if isinstance(node, ast.ImportFrom):
        return node.module == "yaml" and any(YAML_READERS.fullmatch(alias.name) for alias in node.names)
    if isinstance(node, ast.Call) and name_of(node.func) == "getattr":
        return name_of(node.args[0]) == "yaml"
    return (
        isinstance(node, ast.Attribute)
        and name_of(node.value) == "yaml"
        and YAML_READERS.fullmatch(node.attr) is not None
    )


def handles_durations(node: ast.AST) -> bool:
    """A function named so, or a table of Go's units."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        return DURATION_NAME.fullmatch(node.name) is not None
    items = node.keys if isinstance(node, ast.Dict) else node.elts if isinstance(node, ast.Tuple | ast.List) else []
    texts = {inner.value for item in items if item for inner in ast.walk(item) if isinstance(inner, ast.Constant)}
    return len(GO_UNITS & texts) >= 3


def renames(node: ast.AST) -> bool:
    """`os.rename`, `os.replace`, `shutil.move`, and `Path.rename`, `Path.replace`, which take one argument."""
    if isinstance(node, ast.ImportFrom):
        return node.module in ("os", "shutil") and any(
            alias.name in ("rename", "replace", "move") for alias in node.names
        )
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
        return False
    if name_of(node.func.value) in ("os", "shutil"):
        return node.func.attr in ("rename", "renames", "replace", "move")
    return node.func.attr in ("rename", "replace") and len(node.args) == 1 and not node.keywords


def applies_patches(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.startswith(PATCH_DIRECTIVES)


def reads_http(node: ast.AST) -> bool:
    """A parser's library, or bytes that end a head or begin a response."""
    if isinstance(node, ast.Import):
        return any(alias.name in ("httptools", "h11") for alias in node.names)
    if isinstance(node, ast.ImportFrom):
        return node.module in ("httptools", "h11")
    return (
        isinstance(node, ast.Constant)
        and isinstance(node.value, bytes)
        and (node.value == b"\r\n\r\n" or node.value.startswith(b"HTTP/1"))
    )


def converts_checked_digits(node: ast.AST) -> bool:
    """A function with `int(text)` after `text.isdigit()`: true of endless digits and of those of every script."""
    if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        return False
    converted, checked = set(), set()
    for call in (inner for inner in ast.walk(node) if isinstance(inner, ast.Call)):
        if name_of(call.func) == "int" and len(call.args) == 1:
            converted.add(ast.unparse(call.args[0]))
        elif isinstance(call.func, ast.Attribute) and call.func.attr in ("isdigit", "isdecimal", "isnumeric"):
            checked.add(ast.unparse(call.func.value))
    return bool(converted & checked)


@dataclass(frozen=True)
class Single:
    """One implementation. `homes`: the beginnings of the paths where it may be."""

    name: str
    found_in: Matches
    homes: tuple[str, ...]
    instead: str


SINGLES = (
    Single(
        "back-off by powers",
        grows_by_power,
        # the buckets of a native histogram grow by powers too
        ("base/kit/backoff.py", "base/kit/metrics.py", "edges/cri/wire.py"),
        "BackoffPolicy.delay_s",
    ),
    Single("back-off by the last pause", is_scaled_pause, ("base/kit/backoff.py",), "BackoffPolicy.next_s"),
    Single(
        "token bucket",
        is_rate_limit,
        # a histogram has buckets too
        ("base/kit/bucket.py", "base/kit/metrics.py"),
        "base/kit/bucket.py",
    ),
    Single("YAML reader", reads_yaml, ("base/api/documents.py",), "base/api/documents.py"),
    # an age of kubectl has other units and rules than a duration of Go
    Single(
        "Go duration",
        handles_durations,
        ("base/kit/durations.py", "pykubelet_local_api/kinds/ages.py"),
        "base/kit/durations.py",
    ),
    Single(
        "atomic replacement",
        renames,
        (
            "edges/host/fs/files.py",
            "edges/host/fs/checkpoint.py",
            "edges/host/fs/trees.py",
            "testing/cri/fake.py",
            "testing/",
            "pykubelet_local_api/access/files.py",  # a package that imports nothing of edges
        ),
        "edges/host/fs/files.py, edges/host/fs/checkpoint.py",
    ),
    Single(
        "strategic merge",
        applies_patches,
        ("base/api/patch.py", "pykubelet_local_api/patch/strategic.py"),
        "base/api/patch.py",
    ),
    Single(
        "HTTP reader", reads_http, ("net/http/",), "net/http/response.py, net/http/tolerant.py, net/http/request.py"
    ),
    Single(
        "number of others",
        converts_checked_digits,  # text of the kernel and of the host's own programs; a status of three digits
        ("base/kit/text.py", "edges/host/", "net/http/tolerant.py"),
        "base/kit/text.py",
    ),
)


#: Of these the rules ask; a tree has ten times as many other nodes.
KINDS = (
    ast.AugAssign, ast.BinOp, ast.Call, ast.Constant, ast.Dict, ast.List, ast.Tuple, ast.Attribute,
    ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef, ast.Import, ast.ImportFrom,
)  # fmt: skip


def nodes_of(text: str) -> list[ast.AST]:
    return [node for node in ast.walk(ast.parse(text)) if isinstance(node, KINDS)]


@cache
def places() -> dict[str, list[tuple[str, int]]]:
    """Where in the product each `Single` finds something: paths below the package, and lines.

    No syntax tree is kept: with a million objects more, each collection of garbage by a later test of this process takes a second.
    """
    found: dict[str, list[tuple[str, int]]] = {single.name: [] for single in SINGLES}
    for name, path in source_files().items():
        nodes = nodes_of(path.read_text())
        for single in SINGLES:
            found[single.name] += [(name, line) for line in lines(single, nodes)]
    return found


def lines(single: Single, nodes: list[ast.AST]) -> list[int]:
    return [getattr(node, "lineno", 0) for node in nodes if single.found_in(node)]


@pytest.mark.parametrize("single", SINGLES, ids=lambda single: single.name)
def test_nothing_is_written_a_second_time(single: Single) -> None:
    copies = [f"{path}:{line}" for path, line in places()[single.name] if not path.startswith(single.homes)]
    assert copies == [], f"use {single.instead}"


COPIES = {
    "back-off by powers": ["delay = 2 ** failures", "delay = min(first * 2.0 ** (failures - 1), cap)", "pow(2, n)"],
    "back-off by the last pause": [
        "pause_s = min(pause_s * 2, 60)",
        "self._delay *= 2",
        "retry_in = 1.5 * self.retry_in",
        "pause_s *= FACTOR",
    ],
    "token bucket": [
        "class Bucket:\n    pass",
        "class _RateLimiter: ...",
        "self._tokens -= 1",
        "self._free_at += step",
    ],
    "YAML reader": [
        "yaml.safe_load(text)",
        "from yaml import CSafeLoader",
        "import yaml as y",
        'loader = getattr(yaml, "CSafeLoader")',
        "msgspec.yaml.decode(data)",
    ],
    "Go duration": [
        "def parse_duration(text): ...",
        "async def _format_duration(ns): ...",
        'UNITS = {"ms": 1, "s": 1000, "m": 60_000}',
        'UNITS = (("h", 3600), ("m", 60), ("s", 1))',
    ],
    "HTTP reader": [
        "head, _, body = data.partition(b'\\r\\n\\r\\n')",
        "ok = head.startswith(b'HTTP/1.1 200')",
        "from httptools import HttpRequestParser",
    ],
    "atomic replacement": [
        "os.replace(temporary, path)",
        "from os import rename",
        "Path(temporary).rename(path)",
        "shutil.move(one, other)",
    ],
    "strategic merge": ['patch.pop("$patch")', 'key.startswith("$setElementOrder/")'],
    "number of others": ["def f(text):\n    return int(text) if text.isdigit() else 0"],
}
OTHERS = """
class UserNamespace:
    mask, size = 2**31 - 1, 10 ** len(digits)

def read(text, pause_s, count):
    total = pause_s * 1000 + count * 2
    waiting_ms = {"name": "ms"}
    yaml.safe_dump(text)
    return int(count), text.isdigit(), text.replace("a", "b"), replace(text, at=1), files.rename(text, total)
"""


@pytest.mark.parametrize("single", SINGLES, ids=lambda single: single.name)
def test_a_copy_is_found_and_nothing_else(single: Single) -> None:
    for copy in COPIES[single.name]:
        assert lines(single, nodes_of(copy)), copy
    assert lines(single, nodes_of(OTHERS)) == []


def test_a_public_class_name_exists_once() -> None:
    """A reader who meets a name knows the class, and a search finds it. The interface of extensions has its users' own words."""
    homes: dict[str, list[str]] = {}
    for name, path in source_files().items():
        if "/extension/" in path.as_posix():
            continue
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                homes.setdefault(node.name, []).append(name)
    assert {name: found for name, found in homes.items() if len(found) > 1} == {}
