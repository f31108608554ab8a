"""Reads when the machine was started."""

from __future__ import annotations

from pykubelet.edges.host.fs.text_files import read_table


def read_boot_time(proc: str = "/proc") -> float:
    """When the machine was started, in wall seconds."""
    return float(read_table(f"{proc}/stat").get("btime", 0))
