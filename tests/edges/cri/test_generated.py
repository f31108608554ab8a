"""The committed protobuf code is what the .proto files say, and imports without a warning."""

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[3]


def load_generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("gen_proto", ROOT / "tools" / "gen_proto.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_committed_code_matches_the_proto_files(tmp_path: Path) -> None:
    generator = load_generator()
    proto_dirs = generator.proto_dirs()
    assert {ROOT / "src/pykubelet/edges/cri/proto", ROOT / "src/pykubelet_images/proto"} <= set(proto_dirs)
    stale = []
    for proto_dir in proto_dirs:
        for fresh in generator.generate(proto_dir, tmp_path / proto_dir.parent.relative_to(ROOT)):
            committed = proto_dir.parent / fresh.name
            if not committed.exists() or committed.read_text() != fresh.read_text():
                stale.append(str(committed.relative_to(ROOT)))
    assert not stale, "run: python tools/gen_proto.py"


@pytest.mark.parametrize(
    "module",
    [
        *(
            f"pykubelet.edges.cri.{name}_pb2"
            for name in ("cri", "containerd_events", "containerd_task_events", "containerd_tasks")
        ),
        *(f"pykubelet_images.containerd_{name}_pb2" for name in ("content", "images", "leases")),
    ],
)
def test_import_gives_no_warning(module: str) -> None:
    code = f"import {module}"
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
