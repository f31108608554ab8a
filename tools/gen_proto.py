"""Generates the protobuf message code (`*_pb2.py`, `*_pb2.pyi`) from every `.proto` file of a directory `proto` below `src`.

The output is committed beside the `proto` directory, so that running the agent needs no compiler. Only messages are
generated: clients are written by hand, because the generated gRPC stubs pull in code and checks that are not needed.

The generated code refuses a protobuf runtime older than the compiler of grpcio-tools; use the locked versions:
    python tools/gen_proto.py            write the code into the source tree
    python tools/gen_proto.py --out DIR  write it into DIR, in the same layout (the staleness test does this)
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import grpc_tools  # type: ignore[import-untyped]
from grpc_tools import protoc

ROOT = Path(__file__).resolve().parent.parent
SOURCES = ROOT / "src"


def proto_dirs() -> list[Path]:
    """The directories that hold our .proto files, in a stable order."""
    return sorted({path.parent for path in SOURCES.rglob("proto/*.proto")})


def generate(proto_dir: Path, out_dir: Path) -> list[Path]:
    """Compile every .proto of one directory into `out_dir`; returns the files written. Raises RuntimeError."""
    protos = sorted(proto_dir.glob("*.proto"))
    out_dir.mkdir(parents=True, exist_ok=True)
    well_known = Path(str(grpc_tools.__file__)).parent / "_proto"
    args = [
        "protoc",
        f"-I{proto_dir}",
        f"-I{well_known}",
        f"--python_out={out_dir}",
        f"--pyi_out={out_dir}",
        *(str(path) for path in protos),
    ]
    if protoc.main(args) != 0:
        raise RuntimeError(f"protoc failed for {proto_dir}")
    return [out_dir / f"{path.stem}_pb2{suffix}" for path in protos for suffix in (".py", ".pyi")]


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="generate protobuf message code")
    parser.add_argument("--out", type=Path, help="write below this directory instead of the source tree")
    args = parser.parse_args(argv)
    base: Path = args.out or SOURCES
    for proto_dir in proto_dirs():
        for path in generate(proto_dir, base / proto_dir.parent.relative_to(SOURCES)):
            print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
