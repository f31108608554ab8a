"""Kubernetes' Debian packages, as far as a cluster needs them, made from its programs: a folder that apt can use as an archive.

Kubernetes publishes these packages in a repository of its own, which the virtual machine does not reach.
"""

from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

from testbed.debian import run_quiet

#: The packages and the program of each. `cri-tools` is optional.
PACKAGES = {"kubectl": "kubectl", "kubeadm": "kubeadm", "cri-tools": "crictl"}
#: Comes with kubeadm.
_DROP_IN = Path("usr/lib/systemd/system/kubelet.service.d/10-kubeadm.conf")
_KUBECONFIGS = "--bootstrap-kubeconfig=/etc/kubernetes/bootstrap-kubelet.conf --kubeconfig=/etc/kubernetes/kubelet.conf"
_DROP_IN_TEXT = f"""[Service]
Environment="KUBELET_KUBECONFIG_ARGS={_KUBECONFIGS}"
Environment="KUBELET_CONFIG_ARGS=--config=/var/lib/kubelet/config.yaml"
EnvironmentFile=-/var/lib/kubelet/kubeadm-flags.env
EnvironmentFile=-/etc/default/kubelet
ExecStart=
ExecStart=/usr/bin/kubelet $KUBELET_KUBECONFIG_ARGS $KUBELET_CONFIG_ARGS $KUBELET_KUBEADM_ARGS $KUBELET_EXTRA_ARGS
"""


def build(binaries: Path, out: Path) -> None:
    """Packages of the programs that are in `binaries`, and the index of them, in the folder `out`."""
    out.mkdir(parents=True)
    found = [name for name, program in PACKAGES.items() if (binaries / program).exists()]
    stanzas = [_package(name, binaries, "cri-tools" in found, out) for name in found]
    (out / "Packages").write_text("\n".join(stanzas))


def _package(name: str, binaries: Path, has_tools: bool, out: Path) -> str:
    """Write one package; returns its stanza of the index."""
    program = binaries / PACKAGES[name]
    fields = {
        "Package": name,
        "Version": f"{_version(program)}-1.1",
        "Architecture": "amd64",
        "Maintainer": "Tests of pykubelet <root@localhost>",
        "Depends": "cri-tools" if name == "kubeadm" and has_tools else "",
        "Description": f"{program.name} of Kubernetes",
    }
    control = "".join(f"{key}: {value}\n" for key, value in fields.items() if value)
    path = out / f"{name}.deb"
    with tempfile.TemporaryDirectory(prefix="package-", dir=out) as temporary:
        tree = Path(temporary, "tree")
        (tree / "DEBIAN").mkdir(parents=True)
        (tree / "usr/bin").mkdir(parents=True)
        shutil.copy(program, tree / "usr/bin")
        if name == "kubeadm":
            (tree / _DROP_IN.parent).mkdir(parents=True)
            (tree / _DROP_IN).write_text(_DROP_IN_TEXT)
        (tree / "DEBIAN/control").write_text(control)
        tree.chmod(0o755)
        run_quiet("dpkg-deb", "--root-owner-group", "-Znone", "--build", tree, path)
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    return f"{control}Filename: ./{path.name}\nSize: {path.stat().st_size}\nSHA256: {digest}\n"


def _version(program: Path) -> str:
    """1.36.2 of a program that prints it somewhere; 0 where it does not know its version."""
    words = {"kubectl": ("version", "--client"), "kubeadm": ("version", "-o", "short")}
    command = [str(program), *words.get(program.name, ("--version",))]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    match = re.search(r"v?(\d+\.\d+\.\d+)", done.stdout)
    return match[1] if match else "0"
