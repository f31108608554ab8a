"""Installs from Debian what a node or its tests need and this machine lacks. Needs root only if something is missing."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Mapping
from ctypes.util import find_library
from pathlib import Path

from testbed import images
from testbed.host import TestbedError
from testbed.private_runtime import CNI_BIN, DOCKERD

_SBIN = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
#: The folders of programs that every test bed searches.
SYSTEM_FOLDERS = tuple(_SBIN.split(":"))


def has(*programs: str) -> Callable[[], bool]:
    """A check that all these programs are on the system's path."""
    return lambda: all(shutil.which(program, path=_SBIN) is not None for program in programs)


def _has_busybox() -> bool:
    try:
        images.busybox_binary()
    except images.ImageError:
        return False
    return True


def _has_venv() -> bool:
    return importlib.util.find_spec("ensurepip") is not None and importlib.util.find_spec("venv") is not None


# A package counts as there when what it is needed for is there, wherever that came from.
ENVIRONMENT: Mapping[str, Callable[[], bool]] = {"python3-venv": _has_venv}
NODE: Mapping[str, Callable[[], bool]] = {
    "containerd": has("containerd", "ctr", "containerd-shim-runc-v2"),
    "runc": has("runc"),
    "containernetworking-plugins": lambda: all(
        Path(CNI_BIN, plugin).exists() for plugin in ("bridge", "host-local", "loopback", "portmap")
    ),
    "iptables": has("iptables", "iptables-save", "iptables-restore"),
    "iproute2": has("ip"),
    "mount": has("mount"),
    "busybox-static": _has_busybox,
}
#: The same beside a runtime from elsewhere. Its folder may have a runc of its own; Debian's serves where it has none.
NODE_WITHOUT_RUNTIME = {package: is_there for package, is_there in NODE.items() if package != "containerd"}
CLUSTER: Mapping[str, Callable[[], bool]] = {"openssl": has("openssl"), "kubernetes-client": has("kubectl")}
TESTS: Mapping[str, Callable[[], bool]] = {
    "docker-registry": has("docker-registry"),
    "openssl": has("openssl"),
    "gcc": has("gcc"),
    "libc6-dev": lambda: Path("/usr/include/stdlib.h").exists(),
    "chromium": has("chromium"),
    "faketime": has("faketime"),
    "dbus-daemon": has("dbus-daemon"),
    "e2fsprogs": has("mkfs.ext4", "debugfs", "resize2fs"),
    "fish": has("fish"),
    "groff-base": has("groff"),
    "zsh": has("zsh"),
}
#: What a node of an ordinary user needs beside `NODE` (docs/rootless.md).
ROOTLESS: Mapping[str, Callable[[], bool]] = {
    "rootlesskit": has("rootlesskit"),
    "uidmap": has("newuidmap", "newgidmap"),
    "slirp4netns": has("slirp4netns"),
}

#: What dockerd is linked against.
DOCKER: Mapping[str, Callable[[], bool]] = {"libdevmapper1.02.1": lambda: find_library("devmapper") is not None}
DOCKER_PACKAGE = "docker.io"

#: Programs that tests start themselves, by package. Their packages are unpacked into a cache: installed, they would start a service.
UNPACKED: Mapping[str, tuple[str, ...]] = {"prometheus": ("prometheus", "promtool"), DOCKER_PACKAGE: (DOCKERD,)}


def cache_folder() -> Path:
    """Where packages are unpacked: below XDG_CACHE_HOME or ~/.cache."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "pykubelet", "packages")


def unpacked(package: str, program: str) -> Path | None:
    """A program of an unpacked package, or of one that is installed; None if it is not there."""
    own = cache_folder() / package / "usr"
    found = shutil.which(program, path=f"{own}/bin:{own}/sbin:{_SBIN}")
    return None if found is None else Path(found)


def unpack_missing(*packages: str) -> None:
    """Download and unpack those of `packages` (of `UNPACKED`; all if none is named) that are not there. Raises TestbedError."""
    for package, programs in UNPACKED.items():
        if package in (packages or UNPACKED) and any(unpacked(package, program) is None for program in programs):
            print(f"unpacking from Debian: {package}", flush=True)
            update_lists()
            _unpack(package)


def _unpack(package: str) -> None:
    """Everything happens in a folder beside the final one, which appears whole or not at all."""
    folder = cache_folder() / package
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f"{package}.", dir=folder.parent) as part:
        # apt's own user may not write below a home directory
        download = ["-q", "-o", "APT::Sandbox::User=root", "download", package]
        _apt_get(download, needed=True, cwd=Path(part))
        [archive] = Path(part).glob("*.deb")
        tree = Path(part, "tree")
        if subprocess.run(["dpkg-deb", "-x", archive, tree], stdin=subprocess.DEVNULL, check=False).returncode != 0:
            raise TestbedError(f"{archive.name} cannot be unpacked")
        with contextlib.suppress(OSError):  # another run was first
            tree.rename(folder)


def missing(wanted: Mapping[str, Callable[[], bool]]) -> list[str]:
    """The packages of `wanted` whose purpose nothing on this machine serves."""
    return [package for package, is_there in wanted.items() if not is_there()]


def ensure(*groups: Mapping[str, Callable[[], bool]]) -> None:
    """Install what is missing of `groups`. Raises TestbedError without root, without apt-get, or when apt-get fails."""
    wanted = {package: is_there for group in groups for package, is_there in group.items()}
    absent = missing(wanted)
    if not absent:
        return
    if shutil.which("apt-get") is None:
        raise TestbedError(f"not a Debian machine, and these are missing: {' '.join(absent)}")
    if os.geteuid() != 0:
        raise TestbedError(f"run as root, or install: {' '.join(absent)}")
    print(f"installing from Debian: {' '.join(absent)}", flush=True)
    update_lists()
    _apt_get(["install", "-q", "-y", "--no-install-recommends", *absent], needed=True)
    if left := missing(wanted):
        raise TestbedError(f"still missing after the installation: {' '.join(left)}")


def update_lists() -> None:
    """Read the lists of the machine's archives. A failure shows when something is installed from them."""
    _apt_get(["update", "-q"], needed=False)


def _apt_get(arguments: Iterable[str], needed: bool, cwd: Path | None = None) -> None:
    env = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    command = ["apt-get", *arguments]
    done = subprocess.run(
        command, env=env, cwd=cwd, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, check=False
    )
    if done.returncode != 0 and needed:
        raise TestbedError(f"{' '.join(command)} failed:\n{done.stdout}")
