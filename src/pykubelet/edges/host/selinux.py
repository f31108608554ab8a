"""Whether SELinux is enabled on the host, and the context that files of containers have.

Source: selinux(8), "/etc/selinux/config" and "lxc_contexts" of container-selinux.
"""

from __future__ import annotations

from pykubelet.base.model.selinux import SelinuxHost
from pykubelet.edges.host.fs.errors import HostError
from pykubelet.edges.host.fs.files import read_text
from pykubelet.edges.host.fs.mounts import read_mounts_of_type

_MAX_BYTES = 1 << 20


def read_selinux(root: str = "") -> SelinuxHost:
    """SELinux on the host with its files below `root`."""
    try:
        is_mounted = bool(read_mounts_of_type("selinuxfs", proc=f"{root}/proc"))
    except HostError:
        is_mounted = False
    if not is_mounted:
        return SelinuxHost()
    if _read(f"{root}/proc/self/attr/current").strip("\0\n ") in ("", "kernel"):  # no policy is loaded
        return SelinuxHost()
    policy = _setting(_read(f"{root}/etc/selinux/config"), "SELINUXTYPE")
    return SelinuxHost(is_enabled=True, file_context=_setting(_read(_contexts(root, policy)), "file"))


def _contexts(root: str, policy: str) -> str:
    return f"{root}/etc/selinux/{policy}/contexts/lxc_contexts"


def _setting(text: str, name: str) -> str:
    """The value of a line `name = "value"`; "" if there is none."""
    for line in text.splitlines():
        key, mark, value = line.partition("=")
        if mark and key.strip() == name:
            return value.strip().strip('"')
    return ""


def _read(path: str) -> str:
    try:
        return read_text(path, _MAX_BYTES)
    except HostError:
        return ""
