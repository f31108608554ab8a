"""The error of the test bed."""

from __future__ import annotations


class TestbedError(Exception):
    """The machine refuses something the testbed needs; the message names it and the remedy."""

    __test__ = False
