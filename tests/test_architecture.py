"""The contracts that import-linter checks cover every file they are meant for."""

from __future__ import annotations

import tomllib
from pathlib import Path

CHECKOUT = Path(__file__).parents[1]


def test_every_file_that_decides_plans_or_renders_is_under_the_contract_of_purity() -> None:
    contracts = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    [pure] = [contract for contract in contracts if contract["name"].endswith("is pure")]
    named = {module.rpartition(".")[2] for module in pure["source_modules"]}
    files = [path for path in (CHECKOUT / "src").rglob("*.py") if _is_pure(path.stem)]
    assert len(files) > 10
    assert [str(path) for path in files if path.stem not in named] == []


def _is_pure(stem: str) -> bool:
    return stem in ("decide", "plan") or stem.endswith("_plan") or stem.startswith("render_")
