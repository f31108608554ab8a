"""The container image: a minimal Debian 12 with the package pykubelet in it, as a docker-archive, made without a container engine."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from testbed import debian, images, packages
from testbed.host import TestbedError

from packager import deb
from packager.versions import project_version

NAME = "localhost/pykubelet"
#: What the agent calls and the package does not depend on; the init system that the package would start is the host's.
INCLUDE = (deb.PYTHON.name, "iptables", "mount", "util-linux", "nfs-common", "ca-certificates")
# what mmdebstrap took from this machine to install, its archives among it, and what no container needs
_CLEAN = (
    "rm -rf $1/var/lib/apt/lists/* $1/var/cache/apt/* $1/var/log/* $1/etc/apt/apt.conf.d/99mmdebstrap; "
    "rm -f $1/etc/apt/sources.list $1/etc/apt/sources.list.d/*; : > $1/etc/hostname; : > $1/etc/resolv.conf"
)


def build(checkout: Path, out: Path) -> Path:
    """Build the image into the folder `out`, from a package that is built for it. Needs root."""
    if os.geteuid() != 0:
        raise TestbedError("run as root: the image is made by mmdebstrap, with the files' own owners")
    if deb.PYTHON.name != "python{}.{}".format(*debian.PYTHON):
        raise TestbedError(f"run on Debian {debian.SUITE}, as the image has, and the package in it needs its Python")
    packages.ensure(debian.HOST_PACKAGES)
    version = project_version(checkout)
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="pykubelet-image-") as temporary:
        package = next(path for path in deb.build(checkout, Path(temporary)) if path.name.startswith("pykubelet_"))
        layer = Path(temporary, "layer.tar")
        inside = "/tmp/pykubelet.deb"
        hooks = [
            f"--customize-hook=copy-in {package} /tmp",
            f'--customize-hook=mv "$1/tmp/{package.name}" "$1{inside}"',
            f'--customize-hook=chroot "$1" dpkg --install {inside}; rm "$1{inside}"',
            f"--customize-hook={_CLEAN}",
        ]
        debian.bootstrap(layer, INCLUDE, hooks)
        config = images.Config(
            entrypoint=("/usr/bin/pykubelet",),
            cmd=("--config=/etc/pykubelet/config.yaml", "--config-dir=/etc/pykubelet/conf.d"),
            labels={"org.opencontainers.image.title": "pykubelet", "org.opencontainers.image.version": version},
        )
        archive = out / f"pykubelet-image-{version}.tar"
        images.write_archive(f"{NAME}:{version}", layer, config, archive)
    return archive
