"""The source files of the product: of the agent, and of the programs beside it."""

from __future__ import annotations

from functools import cache
from pathlib import Path

SRC = Path(__file__).parents[2] / "src"
AGENT = SRC / "pykubelet"


@cache
def source_files() -> dict[str, Path]:
    """The Python files without generated ones: the agent's by their paths in its package, all others by those below `src`."""
    paths = (path for path in sorted(SRC.rglob("*.py")) if not path.name.endswith(("_pb2.py", "_pb2_grpc.py")))
    return {str(path.relative_to(AGENT if path.is_relative_to(AGENT) else SRC)): path for path in paths}


def companions() -> list[str]:
    """The packages of the programs beside the agent."""
    return sorted(path.parent.name for path in SRC.glob("*/__init__.py") if path.parent != AGENT)
