"""Which etcd, kube-apiserver and companions to run: those that KUBEBUILDER_ASSETS names, or Debian's.

A folder named by KUBEBUILDER_ASSETS needs kube-apiserver; etcd and kubectl may come from the system,
kube-controller-manager and kube-scheduler may be missing.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from testbed import controlplane_build, packages
from testbed.host import TestbedError

VARIABLE = "KUBEBUILDER_ASSETS"
_SBIN = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass(frozen=True, slots=True)
class Programs:
    """Paths; empty where there is none. `minor` is that of the API server's version 1.<minor>."""

    etcd: str
    apiserver: str
    controllers: str
    scheduler: str
    kubectl: str
    minor: int


def find() -> Programs:
    """The programs to run; installs and builds what is missing, unless KUBEBUILDER_ASSETS is set. Raises TestbedError."""
    if assets := os.environ.get(VARIABLE):
        return _of_folder(Path(assets).resolve())
    packages.ensure(packages.CLUSTER, {"etcd-server": packages.has("etcd")})
    try:
        folder = controlplane_build.ensure()
    except TestbedError as error:
        raise TestbedError(
            f"{error}\nOn another system than Debian 12, or without its mirror: name a folder with "
            f"kube-apiserver, kube-controller-manager, kube-scheduler and etcd in {VARIABLE}"
        ) from error
    return _of_folder(folder)


def _of_folder(folder: Path) -> Programs:
    def own(name: str) -> str:
        path = folder / name
        return str(path) if path.exists() else ""

    def own_or_systems(name: str, package: str) -> str:
        path = own(name) or shutil.which(name, path=_SBIN)
        if not path:
            raise TestbedError(f"{name} is neither in {folder} nor on the system: install the Debian package {package}")
        return path

    if not own("kube-apiserver"):
        raise TestbedError(f"no kube-apiserver in {folder}")
    return Programs(
        etcd=own_or_systems("etcd", "etcd-server"),
        apiserver=own("kube-apiserver"),
        controllers=own("kube-controller-manager"),
        scheduler=own("kube-scheduler"),
        kubectl=own_or_systems("kubectl", "kubernetes-client"),
        minor=read_minor(own("kube-apiserver")),
    )


def read_minor(program: str) -> int:
    """36 of a program that prints `Kubernetes v1.36.2`."""
    try:
        done = subprocess.run(
            [program, "--version"], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=30, check=True
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise TestbedError(f"{program} --version: {error}") from error
    found = re.search(r"v1\.(\d+)", done.stdout)
    if found is None:
        raise TestbedError(f"{program} --version prints {done.stdout.strip()!r}")
    return int(found.group(1))
