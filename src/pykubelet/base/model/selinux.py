"""What the node has of SELinux, as far as volumes need it. Pure."""

from __future__ import annotations

from pykubelet.base.kit.values import Value


class SelinuxHost(Value):
    """`file_context`: the context of files of containers, such as `system_u:object_r:container_file_t:s0`; "" if it is not known.

    `mounts_all`: volumes of any access mode are mounted with a context, not only those of one pod (the gate SELinuxMount).
    """

    is_enabled: bool = False
    file_context: str = ""
    mounts_all: bool = False
