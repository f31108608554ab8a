"""Rules of the architecture that import-linter cannot express: purity by name and by docstring, the writers of cells, length of files."""

from __future__ import annotations

import ast
import re
import tomllib
from collections import defaultdict, deque
from collections.abc import Iterator
from enum import Enum
from functools import cache
from pathlib import Path
from typing import Any, NewType, TypeVar, get_args, get_origin, get_type_hints

from msgspec import Struct
from support.product import AGENT as SRC
from support.product import SRC as PACKAGES
from support.product import companions, source_files

from pykubelet.app.commands import GROUP
from pykubelet.app.parts import Cells, LazySlot, Slot
from pykubelet.base.model.diagnostics import StepLog
from pykubelet.base.model.lifecycle import PodLifecycle
from pykubelet.base.model.node import NodeView

IMPURE = {
    "aiohttp", "asyncio", "ctypes", "grpc", "jeepney", "os", "pathlib", "random", "secrets", "select", "shutil",
    "signal", "socket", "ssl", "subprocess", "tempfile", "threading", "time", "uvloop",
}  # fmt: skip
NAME = re.compile(r"decide.*|.*plan.*|render_.*")
#: Lines of a file of code or of tests; more are two things, each with a name that a reader would look for.
LONGEST = 600
#: What generators make is as long as its source.
GENERATED = re.compile(r".*_pb2(?:_grpc)?\.py|.*/protobuf_fields\.py|src/pykubelet/base/api/core\.py")


def claims_purity(path: Path, tree: ast.Module) -> bool:
    """A module is pure by its name, by its place, or because its docstring contains "Pure."."""
    in_model = path.is_relative_to(SRC / "base" / "model")
    is_kind = path.is_relative_to(SRC / "provide" / "volumes" / "kinds")  # a kind plans; its effects go through edges
    return in_model or is_kind or NAME.fullmatch(path.stem) is not None or "Pure." in (ast.get_docstring(tree) or "")


def imported(tree: ast.Module) -> Iterator[str]:
    """The top-level names of all imports that are executed; those for type checkers alone do not count."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module.partition(".")[0]


def violations(path: Path, text: str) -> list[str] | None:
    """The impure imports of a module; None if it does not claim to be pure."""
    tree = ast.parse(text)
    if not claims_purity(path, tree):
        return None
    return [f"{path}: imports {name}" for name in imported(tree) if name in IMPURE]


def test_modules_that_are_pure_by_name_place_or_docstring_import_nothing_impure() -> None:
    pure = [found for path in source_files().values() if (found := violations(path, path.read_text())) is not None]
    assert len(pure) > 150
    assert [found for names in pure for found in names] == []


def test_an_impure_import_in_a_pure_module_is_found() -> None:
    for name, docstring in (("decide_all.py", "x"), ("gc_plan.py", "x"), ("other.py", "What to do next. Pure.")):
        text = f'"""{docstring}"""\n\n\ndef f() -> None:\n    import os\n'
        assert violations(SRC / "act" / name, text) == [f"{SRC / 'act' / name}: imports os"]
    assert violations(SRC / "act" / "other.py", '"""Reads files."""\nimport os\n') is None


def test_files_have_a_length_that_can_be_read() -> None:
    root = PACKAGES.parent
    lengths = {
        str(path.relative_to(root)): len(path.read_text().splitlines())
        for folder in ("src", "tests", "tools", "bench", "examples")
        for path in (root / folder).rglob("*.py")
    }
    assert len(lengths) > 1000
    assert {name: lines for name, lines in lengths.items() if lines > LONGEST and not GENERATED.fullmatch(name)} == {}


def test_every_program_beside_the_agent_has_contracts_and_a_command() -> None:
    project = tomllib.loads((PACKAGES.parent / "pyproject.toml").read_text())
    linter, points = project["tool"]["importlinter"], project["project"]["entry-points"][GROUP]
    assert linter["root_packages"] == ["pykubelet", *companions()]
    assert {point.partition(".")[0] for point in points.values()} == {*companions()}
    (of_agent,) = (
        contract for contract in linter["contracts"] if contract["name"] == "the agent imports no program beside it"
    )
    assert (of_agent["source_modules"], of_agent["forbidden_modules"]) == (["pykubelet"], companions())
    bound = {
        name
        for contract in linter["contracts"]
        if "pykubelet" in contract.get("forbidden_modules", ())
        for name in contract["source_modules"]
    }
    assert bound == {*companions()}


def test_the_agent_does_not_name_a_program_beside_it() -> None:
    """Nor as a text, by which it could import one late."""
    texts = {name: path.read_text() for name, path in source_files().items() if path.is_relative_to(SRC)}
    assert [
        f"{name}: {companion}" for name, text in texts.items() for companion in companions() if companion in text
    ] == []


def test_the_table_of_cells_names_the_one_writer_of_each() -> None:
    listed = {name: row[1] for name, row in cells_of_page().items()}
    slots = all_slots()
    assert {slot.cell.name: slot.owner for slot in slots} == listed
    packages = {f"{path.parent.name}/{path.name}" for path in SRC.glob("*/*") if path.is_dir()}
    assert {slot.owner for slot in slots} <= packages


def cells_of_page() -> dict[str, list[str]]:
    """The rows of the table of cells: value, writer and readers by name."""
    page = (Path(__file__).parents[1] / "ARCHITECTURE.md").read_text()
    rows = [line.strip("| ").split(" | ") for line in page.splitlines() if line.startswith("| `")]
    return {row[0].strip("`"): row[1:] for row in rows if len(row) == 4}


@cache
def readers() -> dict[str, set[str]]:
    """By type of cell, the packages that take one, written as in the table. app only connects cells, so it is left out."""
    found: dict[str, set[str]] = defaultdict(set)
    for layer in ("desired", "provide", "act", "observe", "report", "edges", "serve"):
        for path in (SRC / layer).rglob("*.py"):
            package = "/".join(path.relative_to(SRC).parts[:2])
            for kind in re.findall(r"\b(?:Lazy)?Cell\[(\w+)\]", path.read_text()):
                found[kind].add(package)
    return found


def test_the_table_of_cells_names_the_readers_of_each() -> None:
    """By the types of the cells they take: a layer alone stands for all its packages, and the writer may read its own."""
    kinds = {slot.cell.name: (type(slot.cell.get()).__name__, slot.owner) for slot in all_slots()}
    for cell, (_, _, text) in cells_of_page().items():
        kind, owner = kinds[cell]
        listed, found = set(text.split(", ")) - {"app"}, readers()[kind]
        missing = [reader for reader in found if reader != owner and not {reader, reader.partition("/")[0]} & listed]
        gone = [name for name in listed if not any(f"{reader}/".startswith(f"{name}/") for reader in found)]
        assert (missing, gone) == ([], []), cell


def all_slots() -> list[Slot[Any] | LazySlot[Any]]:
    """All cells with their owners."""
    return [slot for slot in vars(Cells(NodeView("node", "node"))).values() if isinstance(slot, (Slot, LazySlot))]


def mutable_parts(kind: Any, path: str, known: set[Any]) -> Iterator[str]:
    """Where values of this type contain something that can change. The maps of API objects are dicts, because they are decoded."""
    if isinstance(kind, NewType):
        kind = kind.__supertype__
    if isinstance(kind, TypeVar) or kind is Ellipsis or kind in known:
        return
    known.add(kind)
    if get_origin(kind) is not None:
        is_api = path.startswith("pykubelet.base.api.")
        if get_origin(kind) in (list, set, deque) or (get_origin(kind) is dict and not is_api):
            yield f"{path}: {kind}"
        for part in get_args(kind):
            yield from mutable_parts(part, path, known)
    elif issubclass(kind, Struct) and kind.__struct_config__.frozen:
        hints = get_type_hints(kind)
        for name in kind.__struct_fields__:
            yield from mutable_parts(hints[name], f"{kind.__module__}.{kind.__name__}.{name}", known)
    elif not issubclass(kind, (Enum, str, int, float, bytes, type(None))):
        yield f"{path}: {kind.__name__}"


def test_a_snapshot_contains_nothing_that_can_change() -> None:
    known: set[Any] = set()
    found = [line for slot in all_slots() for line in mutable_parts(type(slot.cell.get()), slot.cell.name, known)]
    assert found == []
    assert PodLifecycle in known and len(known) > 300


def test_a_snapshot_with_a_log_in_it_is_found() -> None:
    class Worker(Struct, frozen=True):
        steps: StepLog

    assert [line.partition(": ")[2].partition("[")[0] for line in mutable_parts(Worker, "", set())] == [
        "collections.deque"
    ]
