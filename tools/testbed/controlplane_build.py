"""kube-apiserver, kube-controller-manager and kube-scheduler from Debian 12's source package, built once and kept.

Owns the cache folder. The machine's apt configuration is read and left alone: the source package comes from the mirror it
names, checked with Debian's keys, by way of package lists of our own. Takes about five minutes of two cores.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

from testbed import packages
from testbed.host import TestbedError

VERSION = "1.20.2"
PROGRAMS = ("kube-apiserver", "kube-controller-manager", "kube-scheduler")
_GO = Path("/usr/lib/go-1.19/bin")
_SUITE = "bookworm"
_KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
_SPACE = 4 << 30
_NEEDED = {
    "golang-1.19-go": (_GO / "go").exists,
    "dpkg-dev": packages.has("dpkg-source", "patch", "xz"),
    "rsync": packages.has("rsync"),
    "make": packages.has("make"),
}


def cache_folder() -> Path:
    """Where the built programs are kept: below XDG_CACHE_HOME or ~/.cache."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base, "pykubelet", f"controlplane-{VERSION}-{os.uname().machine}")


def ensure(folder: Path | None = None) -> Path:
    """The folder with PROGRAMS, built if it is not there. Two callers at once build once. Raises TestbedError."""
    folder = folder or cache_folder()
    if folder.exists():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with _locked(folder):
        if not folder.exists():
            _build(folder)
    return folder


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    with folder.with_name(f"{folder.name}.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print("waiting for another build of the control plane", flush=True)
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _build(folder: Path) -> None:
    """Everything happens in a folder beside the final one, which appears whole or not at all."""
    for left in folder.parent.glob(f"{folder.name}.build-*"):  # of a build that was killed: we hold the lock
        shutil.rmtree(left)
    if shutil.disk_usage(folder.parent).free < _SPACE:
        raise TestbedError(f"building the control plane needs {_SPACE >> 30} GiB free in {folder.parent}")
    packages.ensure(_NEEDED)
    log = folder.with_name(f"{folder.name}.log")
    print(
        f"building the control plane {VERSION} from Debian's source package: about five minutes on two cores, once.\n"
        f"It is kept in {folder}; the log is {log}",
        flush=True,
    )
    part = Path(tempfile.mkdtemp(prefix=f"{folder.name}.build-", dir=folder.parent))
    try:
        log.write_bytes(b"")
        source = part / "go" / "src" / "k8s.io" / "kubernetes"
        _unpack(part, source, log)
        _compile(part, source, log)
        result = part / "result"
        result.mkdir()
        for program in PROGRAMS:
            (source / "_output" / "bin" / program).resolve().rename(result / program)
        result.rename(folder)
    finally:
        shutil.rmtree(part)
    log.unlink()


def _unpack(part: Path, source: Path, log: Path) -> None:
    """Download with apt, from the mirror and below the keys that the machine has, into lists of our own."""
    (part / "lists" / "partial").mkdir(parents=True)
    (part / "parts").mkdir()
    (part / "parts" / "source.list").write_text(f"deb-src [signed-by={_KEYRING}] {_mirror()} {_SUITE} main\n")
    config = part / "apt.conf"
    config.write_text(
        f'Dir::Etc::SourceList "/dev/null";\nDir::Etc::SourceParts "{part}/parts";\nDir::State::Lists "{part}/lists";\n'
        'Dir::Cache::pkgcache "";\nDir::Cache::srcpkgcache "";\nAPT::Sandbox::User "root";\n'
    )
    env = os.environ | {"APT_CONFIG": str(config)}
    _run(["apt-get", "update", "-q"], part, env, log)
    _run(["apt-get", "source", "-q", "--only-source", "kubernetes"], part, env, log)
    source.parent.mkdir(parents=True)
    (tree,) = part.glob("kubernetes-*/")
    tree.rename(source)


def _mirror() -> str:
    """The archive that this machine is installed from. Raises TestbedError if that has no Debian 12."""
    if _SUITE not in (found := _archives()):  # apt lists nothing before its first update
        packages.update_lists()
        found = _archives()
    if _SUITE not in found:
        raise TestbedError(
            f"the control plane is built from the sources of Debian 12: add an archive with {_SUITE} to apt's"
        )
    return found[_SUITE]


def _archives() -> dict[str, str]:
    """The URI of the archive of each suite that apt knows."""
    command = ["apt-get", "indextargets", "--format", "$(CODENAME) $(REPO_URI)"]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    return dict(line.split(" ", 1) for line in done.stdout.splitlines() if " " in line)


def _compile(part: Path, source: Path, log: Path) -> None:
    env = {name: value for name, value in os.environ.items() if not name.startswith(("GO", "KUBE_", "MAKE"))}
    env |= {
        "PATH": f"{_GO}:/usr/sbin:/usr/bin:/sbin:/bin",
        "HOME": str(part),
        "GOPATH": str(part / "go"),
        "GOCACHE": str(part / "cache"),
        "TMPDIR": str(part),
        "CGO_ENABLED": "0",
        # the tree is no git checkout: what it would say of itself
        "KUBE_GIT_VERSION": f"v{VERSION}",
        "KUBE_GIT_MAJOR": VERSION.split(".")[0],
        "KUBE_GIT_MINOR": VERSION.split(".")[1],
        "KUBE_GIT_COMMIT": "debian",
        "KUBE_GIT_TREE_STATE": "archive",
    }
    what = " ".join(f"cmd/{program}" for program in PROGRAMS)
    _run(["nice", "-n", "10", "make", f"WHAT={what}"], source, env, log)


def _run(command: list[str], folder: Path, env: dict[str, str], log: Path) -> None:
    with log.open("ab") as output:
        done = subprocess.run(
            command, cwd=folder, env=env, stdin=subprocess.DEVNULL, stdout=output, stderr=output, check=False
        )
    if done.returncode != 0:
        end = "\n".join(log.read_text(errors="replace").splitlines()[-15:])
        raise TestbedError(f"{' '.join(command[:3])} failed; the end of {log}:\n{end}")
