"""Finds and opens a container's log: the one way for all readers. Blocks.

A pod may be able to write to the directory of its logs. So a log is looked for from a descriptor of the directory of all pods' logs, no
link is followed, and nothing but a regular file is opened: opening a device or a FIFO has effects of its own. The only exception
is the link that a runtime over Docker puts in the place of a log: it leads to the file that Docker has for this very container.
"""

from __future__ import annotations

from contextlib import suppress

from pykubelet.base.model.paths import Beneath, log_file
from pykubelet.edges.host.fs import beneath
from pykubelet.edges.host.fs.errors import HostError


def find_log(path: str, container: str = "") -> Beneath:
    """The file with the log at the path that the runtime reports. `container`: the container's ID."""
    log = log_file(path)
    target = beneath.read_link(log)
    if container and target is not None and target.endswith(f"/{container}/{container}-json.log"):
        return log_file(target)
    return log


def open_log(path: str, container: str = "") -> int:
    """Open the log. The caller must close the descriptor. HostError: `is_not_found`; EINVAL if it is no regular file; ELOOP for a link."""
    with suppress(HostError):  # the usual log is no link, and needs no look for one
        return beneath.open_regular(log_file(path))
    return beneath.open_regular(find_log(path, container))
