"""The protobuf library without its messages in Python, which stay usable by others."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import sys
from pykubelet.net.grpc.messages import import_protobuf

import_protobuf()
import_protobuf()
import pykubelet.app.run
from pykubelet.app.wiring import LATE
[__import__(name) for name in LATE]
from pykubelet.edges.cri import cri_pb2

assert cri_pb2.VersionRequest.FromString(cri_pb2.VersionRequest(version="v1").SerializeToString()).version == "v1"
print(*sys.modules)
from google.protobuf import text_format
assert "v1" in text_format.MessageToString(cri_pb2.VersionRequest(version="v1"))
"""


def test_messages_in_python_are_not_loaded() -> None:
    found = subprocess.run((sys.executable, "-c", PROGRAM), capture_output=True, check=True, text=True).stdout.split()
    assert "google._upb._message" in found
    assert "google.protobuf.internal.python_message" not in found
