"""The logging of the process, as it was before a test that sets it up."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from pykubelet.base.kit.log import set_verbosity


@contextmanager
def logging_restored() -> Iterator[None]:
    """Undo `set_up_logging` at the end of the block."""
    root = logging.getLogger("pykubelet")
    handlers, propagate, level = root.handlers[:], root.propagate, root.level
    try:
        yield
    finally:
        set_verbosity(0)
        root.handlers[:], root.propagate = handlers, propagate
        root.setLevel(level)
