"""No function keeps an error that it has caught in a variable: the error refers to the function's frame, and the frame to the error.

Both, with all that the frame has, would be freed by a garbage collection only, which comes seldom. A function that needs more of the error
than its text deletes the variable at its end.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCES = Path(__file__).parents[1] / "src"
Function = ast.FunctionDef | ast.AsyncFunctionDef


def kept(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Line and name of each variable that keeps a caught error after its handler."""
    for function in ast.walk(tree):
        if not isinstance(function, Function):
            continue
        deleted = {
            target.id
            for node in ast.walk(function)
            if isinstance(node, ast.Delete)
            for target in node.targets
            if isinstance(target, ast.Name)
        }
        for handler in ast.walk(function):
            if isinstance(handler, ast.ExceptHandler) and handler.name is not None:
                for node in ast.walk(handler):
                    if not isinstance(node, ast.Assign | ast.AnnAssign) or node.value is None:
                        continue
                    if handler.name in errors_in(node.value):
                        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                        names = {target.id for target in targets if isinstance(target, ast.Name)}
                        yield from ((node.lineno, name) for name in sorted(names - deleted))


def errors_in(value: ast.expr) -> set[str]:
    """The variables that are the value, or an entry of it."""
    if isinstance(value, ast.IfExp):
        return errors_in(value.body) | errors_in(value.orelse)
    if isinstance(value, ast.Tuple):
        return set().union(*map(errors_in, value.elts))
    return {value.id} if isinstance(value, ast.Name) else set()


def test_no_function_keeps_an_error_that_it_has_caught() -> None:
    found = {
        f"{path.relative_to(SOURCES)}:{line}": name
        for path in SOURCES.rglob("*.py")
        for line, name in kept(ast.parse(path.read_text()))
    }
    assert not found, (
        "keep the text of the error, use it within the handler, or delete the variable in a finally clause"
    )


@pytest.mark.parametrize(
    ("value", "names"), [("error", ["x"]), ("None if a else error", ["x"]), ("(1, error)", ["x"]), ("str(error)", [])]
)
def test_what_counts_as_keeping(value: str, names: list[str]) -> None:
    code = f"def f():\n try: g()\n except E as error: x = {value}\n return x"
    assert [name for _, name in kept(ast.parse(code))] == names


def test_a_variable_that_is_deleted_keeps_nothing() -> None:
    code = "def f():\n try:\n  try: g()\n  except E as error: x = error\n  raise x\n finally: del x"
    assert not list(kept(ast.parse(code)))
