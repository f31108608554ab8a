"""Imports the protobuf library without its messages in Python, which it imports beside those in C and does not use: 1.2 MiB of memory."""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType

#: What the library imports of its implementation in Python.
_UNUSED = "google.protobuf.internal.python_message"


def import_protobuf() -> None:
    """Import the library. Call it before the first module of messages is imported: later it has no effect.

    Where there are no messages in C, those in Python are imported as always.
    """
    from google.protobuf.internal import api_implementation

    if api_implementation.Type() == "python" or _UNUSED in sys.modules:
        return
    sys.modules[_UNUSED] = ModuleType(_UNUSED)
    try:
        import_module("google.protobuf.internal.builder")  # all of the library that modules of messages import
    finally:
        del sys.modules[_UNUSED]  # other users of the library find the real one
