"""No text can make a regular expression slow: each of the product reads any text in linear time.

A pattern is a constant of its module, or stands where it is used, so that it can be found, analysed and attacked here. One
that the analysis refuses has to be written in another way; `PROVED` is for those of which a comment in the code proves it.
"""

from __future__ import annotations

import ast
import re
import time
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from support.cost import PAUSE_S, pause_limit_s
from support.patterns import Unsupported, attacks, automaton, problem

SRC = Path(__file__).parents[1] / "src"
METHODS = frozenset({"match", "fullmatch", "search", "sub", "subn", "split", "findall", "finditer"})
#: Each worker of the tests finds the patterns: most modules have none, and need not be parsed.
IMPORT = re.compile(r"^\s*import re\b|^\s*import .*, re\b|^\s*from re import", re.MULTILINE)
#: All attacks are tried with a text of the first size, and the slowest of them with one of the second.
SHORT, LONG, SLOWEST = 1 << 14, 1 << 20, 3
#: The CPU seconds that each character of a text may cost. A quadratic pattern costs twenty times as much in a text of 16 KiB.
PER_CHARACTER_S = 2e-6
#: The modules with patterns that the analysis refuses without need, and the start of these patterns.
PROVED = {
    # Each line is matched from its start only, without backtracking, and no repetition goes beyond its line.
    "pykubelet/edges/cri/log_render.py": (b"^[^ ]{20,35}+ ", b"^([^ \\n]{20,35}+ )"),
}
#: Modules that make regular expressions of globs: of patterns of the administrator, or of literal text.
GLOBS = {
    "pykubelet/base/kit/log.py",  # --vmodule
    "pykubelet/edges/host/devices/scsi.py",
    "pykubelet/edges/host/devices/iscsi.py",
    "pykubelet/provide/volumes/kinds/fc.py",
}


@dataclass(frozen=True)
class Use:
    """A pattern and how it is used: with which method, in which module and line."""

    pattern: str | bytes
    flags: int
    method: str
    where: str


def name_of(node: ast.AST) -> str:
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""


def evaluated(node: ast.expr, module: ModuleType) -> Any:
    """The value of an expression made of constants of the module."""
    return eval(compile(ast.Expression(node), str(module.__file__), "eval"), vars(module))


class Finder(ast.NodeVisitor):
    """The uses of regular expressions in one module. A compiled pattern whose use is not seen counts as one that searches."""

    def __init__(self, module: ModuleType, where: str) -> None:
        self._module = module
        self._where = where
        self._named: dict[str, Use] = {}
        self.uses: list[Use] = []
        self.problems: list[str] = []

    def visit_Module(self, node: ast.Module) -> None:
        for statement in node.body:
            if isinstance(statement, ast.Assign) and isinstance(statement.value, ast.Call):
                name = name_of(statement.targets[0])
                if isinstance(found := getattr(self._module, name, None), re.Pattern):
                    self._named[name] = Use(found.pattern, found.flags, "search", f"{self._where}:{statement.lineno}")
                    continue
            self.visit(statement)
        self.uses += self._named.values()

    def visit_Call(self, node: ast.Call) -> None:
        self.generic_visit(node)
        if not isinstance(node.func, ast.Attribute):
            return
        owner, method, where = name_of(node.func.value), node.func.attr, f"{self._where}:{node.lineno}"
        if owner == "re" and method in (*METHODS, "compile"):
            self._add_call(node, "search" if method == "compile" else method, where)
        elif method in METHODS and isinstance(found := getattr(self._module, owner, None), re.Pattern):
            self._named.pop(owner, None)
            self.uses.append(Use(found.pattern, found.flags, method, where))

    def _add_call(self, node: ast.Call, method: str, where: str) -> None:
        given = [*node.args[1:], *(keyword.value for keyword in node.keywords if keyword.arg == "flags")]
        try:
            pattern = evaluated(node.args[0], self._module)
            flags = [evaluated(argument, self._module) for argument in given if "re." in ast.unparse(argument)]
        except NameError:
            self.problems.append(f"{where}: the pattern is no constant")
            return
        self.uses.append(Use(pattern, int(flags[0]) if flags else 0, method, where))


@cache
def found_uses() -> tuple[tuple[Use, ...], tuple[str, ...]]:
    uses: list[Use] = []
    problems: list[str] = []
    for path in sorted(SRC.rglob("*.py")):
        text = path.read_text()
        if IMPORT.search(text) is None or path.name == "__main__.py":
            continue
        tree = ast.parse(text)
        if not any(isinstance(node, ast.Import) and node.names[0].name == "re" for node in ast.walk(tree)):
            continue
        name = path.relative_to(SRC)
        finder = Finder(import_module(".".join(name.with_suffix("").parts)), str(name))
        finder.visit(tree)
        uses += finder.uses
        problems += finder.problems
    return tuple(uses), tuple(problems)


def is_proved(use: Use) -> bool:
    beginnings = PROVED.get(use.where.partition(":")[0], ())
    return isinstance(use.pattern, bytes) and use.pattern.startswith(tuple(beginnings))


def refusal(use: Use) -> str:
    try:
        return problem(automaton(use.pattern, use.flags, use.method))
    except Unsupported as error:
        return f"not analysed: {error}"


def cost_s(use: Use, text: str) -> float:
    """CPU seconds for one use of the pattern on the text."""
    compiled: re.Pattern[Any] = re.compile(
        use.pattern, use.flags & ~re.UNICODE if isinstance(use.pattern, bytes) else use.flags
    )
    given = text.encode("latin-1") if isinstance(use.pattern, bytes) else text
    began = time.thread_time()
    match use.method:
        case "sub" | "subn":
            compiled.subn(given[:0], given)
        case "findall" | "finditer" | "split":
            for _ in compiled.finditer(given):
                pass
        case _:
            getattr(compiled, use.method)(given)
    return time.thread_time() - began


def is_linear(spent_s: float, length: int) -> bool:
    """Whether it costs no more for each character than is allowed; on a slow machine, which is measured only then, as much more."""
    limit_s = length * PER_CHARACTER_S
    return spent_s <= limit_s or spent_s <= limit_s * pause_limit_s() / PAUSE_S


def test_every_pattern_is_found() -> None:
    uses, problems = found_uses()
    assert not problems
    assert len(uses) > 80


@pytest.mark.parametrize("use", found_uses()[0], ids=lambda use: use.where)
def test_every_pattern_reads_any_text_in_linear_time(use: Use) -> None:
    if not is_proved(use):
        assert refusal(use) == ""
    costs = [(cost_s(use, text), n) for n, text in enumerate(attacks(use.pattern, use.flags, SHORT))]
    assert all(is_linear(spent_s, SHORT) for spent_s, _ in costs)
    slowest = {number for _, number in sorted(costs)[-SLOWEST:]}
    for number, text in enumerate(attacks(use.pattern, use.flags, LONG)):
        assert number not in slowest or is_linear(cost_s(use, text), LONG)


def test_globs_are_matched_by_our_own_code() -> None:
    users = {
        str(path.relative_to(SRC))
        for path in SRC.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if (isinstance(node, ast.Import) and any(alias.name in ("glob", "fnmatch") for alias in node.names))
        or (isinstance(node, ast.ImportFrom) and node.module in ("glob", "fnmatch"))
    }
    assert users == GLOBS


@pytest.mark.parametrize(
    ("pattern", "method", "found"),
    [
        (r"(a+)+b", "match", "exponential"),
        (r"(a|bc?)*d", "match", ""),
        (r"(a.|[ab]b)*c", "match", "exponential"),
        (r"(x{0,61}x)*y", "match", "exponential"),
        (r"(a*)*b", "fullmatch", "exponential"),
        (r"(.*a){8}", "match", "quadratic"),
        (r"[a-z]+[a-z]+x", "match", "quadratic"),
        (r"(.+?)-(.+)-([0-9]+)", "fullmatch", "quadratic"),
        (r"[0-9]+x", "search", "quadratic"),
        (r"[0-9]+x", "match", ""),
        (r"[0-9]+", "search", ""),
        (r"\s+$", "search", "quadratic"),
        (r"a-(.+)-b", "search", "quadratic"),
        (r"\$(?:\$|\(([^)]*)\))", "sub", "quadratic"),
        (r"`([^`]*)`", "sub", ""),
        (r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*", "fullmatch", ""),
        (r"([0-9]+)(?s:.*)", "fullmatch", ""),
        (r"([0-9]+).*", "fullmatch", "quadratic"),
        (r"(a)\1*b", "match", "not analysed"),
    ],
)
def test_what_is_slow_is_refused(pattern: str, method: str, found: str) -> None:
    refused = refusal(Use(pattern, 0, method, ""))
    assert refused.startswith(found) if found else not refused


def test_an_attack_finds_what_is_slow() -> None:
    slow = Use(r"a-(.+)-b", 0, "search", "")
    assert max(cost_s(slow, text) for text in attacks(slow.pattern, 0, 1 << 13)) > 0.02
