"""Images of a control plane, made from its programs, under the names by which kubeadm looks for them.

`KUBERNETES_BINARIES` names a folder with kubeadm, kubectl, kube-apiserver, kube-controller-manager, kube-scheduler and etcd, and with
kube-proxy, coredns and metrics-server if the cluster shall have them. A folder `images` in it has the images as archives instead, as
`ctr images export` writes them.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path

from testbed import images
from testbed.host import TestbedError
from testbed.images import Config, Entry

VARIABLE = "KUBERNETES_BINARIES"
#: What a cluster needs outside of containers.
COMMANDS = ("kubeadm", "kubectl")
SERVERS = ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "etcd")
PROXY, DNS, METRICS = "kube-proxy", "coredns", "metrics-server"
#: The one image that is not kubeadm's.
METRICS_IMAGE = f"localhost/{METRICS}:1"
_PACKET_FILTER = ("iptables", "iptables-save", "iptables-restore", "ip6tables", "ip6tables-save", "ip6tables-restore")
_LIBRARY = re.compile(r"(/\S+)(?= \(0x)")
# kubeadm writes the flags of etcd 3.6; before it, these were experimental
_OLD_ETCD = r"""#!/bin/sh
for word; do
  shift
  case $word in
    --feature-gates=InitialCorruptCheck=*) word=--experimental-initial-corrupt-check=${word##*=} ;;
    --watch-progress-notify-interval=*) word=--experimental-watch-progress-notify-interval=${word#*=} ;;
  esac
  set -- "$@" "$word"
done
exec /usr/local/bin/etcd.real "$@"
"""


def folder(environment: Mapping[str, str] = os.environ) -> Path | None:
    """The folder that the variable names, or None where it is not set. Raises TestbedError where something is missing."""
    value = environment.get(VARIABLE)
    if not value:
        return None
    found = Path(value).resolve()
    wanted = COMMANDS if (found / "images").is_dir() else COMMANDS + SERVERS
    if missing := [name for name in wanted if not (found / name).is_file()]:
        raise TestbedError(f"{VARIABLE}={value}: {', '.join(missing)} is missing there")
    return found


def build(binaries: Path, out: Path) -> list[Path]:
    """The archives of all images in `out`: those of the folder `images`, else made from the programs."""
    out.mkdir(parents=True, exist_ok=True)
    if (binaries / "images").is_dir():
        return [Path(shutil.copy(path, out)) for path in sorted((binaries / "images").glob("*.tar"))]
    names = image_names(binaries / "kubeadm") | {METRICS: METRICS_IMAGE}
    made = []
    for program in (*SERVERS, PROXY, DNS, METRICS):
        if (binaries / program).exists():
            made.append(out / f"{program}.tar")
            # kubeadm's manifest names the command of all others
            config = Config(entrypoint=(f"/usr/local/bin/{DNS}",)) if program == DNS else Config()
            images.build_image(names[program], _files(binaries / program), config, made[-1])
    made.append(out / "pause.tar")
    files, config = images.pause_parts(images.compile_pause())
    images.build_image(names["pause"], files, config, made[-1])
    return made


def has_dns(binaries: Path) -> bool:
    """Whether the folder has what the cluster's DNS needs: coredns, and kube-proxy, which makes its address."""
    if (binaries / "images").is_dir():
        return all(any((binaries / "images").glob(f"*{name}*.tar")) for name in (PROXY, DNS))
    return all((binaries / name).exists() for name in (PROXY, DNS))


def image_names(kubeadm: Path) -> dict[str, str]:
    """The images of kubeadm's own version, by the last part of their names."""
    version = _output(kubeadm, "version", "-o", "short").strip()
    listed = _output(kubeadm, "config", "images", "list", f"--kubernetes-version={version}").split()
    return {name.rpartition("/")[2].partition(":")[0]: name for name in listed}


def _files(program: Path) -> dict[str, Entry]:
    """A root file system for one program: what it is linked with, a shell to look around, and what it runs."""
    path = f"/usr/local/bin/{program.name}"
    if program.name == "etcd" and "Version: 3.5" in _output(program, "--version"):
        files = {path: Entry(data=_OLD_ETCD.encode()), f"{path}.real": _copy(program)}
    else:
        files = {path: _copy(program)}
    files |= images.busybox_files() | _libraries([program])
    return files | _packet_filter() if program.name == PROXY else files


def _copy(path: Path) -> Entry:
    return Entry(data=path.read_bytes(), mode=0o755)


def _libraries(programs: Iterable[Path]) -> dict[str, Entry]:
    """The shared libraries and the loader of `programs`, at their own paths; nothing for static ones."""
    found: set[str] = set()
    for program in programs:
        done = subprocess.run(["ldd", program], capture_output=True, text=True, check=False)
        found |= set(_LIBRARY.findall(done.stdout))
    return {path: _copy(Path(path)) for path in found}


def _packet_filter() -> dict[str, Entry]:
    """This machine's iptables with its extensions."""
    program = Path(shutil.which("iptables") or "/usr/sbin/iptables").resolve()
    extensions = [path for parent in Path("/usr/lib").glob("*/xtables") for path in parent.glob("*.so")]
    files = {f"/usr/sbin/{name}": Entry(link=program.name) for name in _PACKET_FILTER}
    files |= {f"/usr/sbin/{program.name}": _copy(program)} | {str(path): _copy(path) for path in extensions}
    return files | _libraries([program, *extensions])


def _output(*command: str | Path) -> str:
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise TestbedError(f"{' '.join(map(str, command))}: {done.stderr.strip()}")
    return done.stdout
