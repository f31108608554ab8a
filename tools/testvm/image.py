"""The machine's disk: Debian 12 made by mmdebstrap, with the project's environment and container images.

Owns the folder of the image. It is built again when something that goes into it changes; the checkout's own code does not
count, because every boot gets the current one (`machine.py`). Needs root.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from testbed import debian, environment, images, packages
from testbed.checkout import CHECKOUT, copy_checkout
from testbed.debian import SUITE, run_quiet
from testbed.host import TestbedError

#: Where the checkout is in the machine.
INSIDE = "root/pykubelet"
_OVERLAY = Path(__file__).with_name("overlay")
_CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")
_DISK, _SWAP = 12 << 30, 1 << 30
_SPACE = 6 << 30

HOST_PACKAGES = {
    **debian.HOST_PACKAGES,
    "qemu-system-x86": packages.has("qemu-system-x86_64"),
    "e2fsprogs": packages.has("mke2fs", "e2fsck", "debugfs"),
    "util-linux": packages.has("mkswap", "unshare"),
    "openssh-client": packages.has("ssh-keygen"),
    "git": packages.has("git"),
    "busybox-static": packages.NODE["busybox-static"],
}
VM_PACKAGES = (
    *("systemd-sysv", "dbus", "udev", "kmod", "linux-image-cloud-amd64", "initramfs-tools", "zstd", "mount", "procps"),
    *("openssh-server", "ca-certificates", "strace", "curl", "jq", "less", "make", "git", "python3", "python3-venv"),
    *("containerd", "runc", "containernetworking-plugins", "iptables", "iproute2", "busybox-static", "openssl"),
    *("faketime", "docker-registry"),
    # for the part `storage`: servers on loopback, and the programs that nodes need
    *("nfs-kernel-server", "nfs-common", "tgt", "open-iscsi", "multipath-tools", "xfsprogs", "btrfs-progs"),
    # for the part `kubeadm`: a second machine
    "systemd-container",
    # for the part `rootless`
    *("rootlesskit", "uidmap", "slirp4netns", "dbus-user-session", "libpam-systemd"),
)
#: What tests install as the guides have it. apt has the archives and its lists, so that it needs no network.
_TO_INSTALL = ("prometheus", "docker.io", "apparmor")
_ENABLED = ("/etc/systemd/system/testvm.service", "/lib/systemd/system/systemd-networkd.service")
# they would only cost time
_MASKED = (
    "docker-registry.service",
    *("apt-daily.timer", "apt-daily-upgrade.timer", "dpkg-db-backup.timer"),
    *("e2scrub_all.timer", "e2scrub_reap.service", "fstrim.timer"),
)
# the tests that need them start them
_NOT_AT_BOOT = (
    *("nfs-server.service", "nfs-client.target", "rpcbind.service", "rpcbind.socket"),
    *("tgt.service", "open-iscsi.service", "iscsid.socket", "iscsid.service"),
    *("multipathd.socket", "multipathd.service"),
)


def ensure(folder: Path) -> None:
    """Make or update the image in `folder`: disk.raw, swap.raw, vmlinuz, initrd, key. Two callers at once build once."""
    if os.uname().machine != "x86_64":
        raise TestbedError("the machine is made from this machine's packages, and only for x86-64")
    wanted = _fingerprint()
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        stamp = folder / "built"
        if stamp.exists() and stamp.read_text() == wanted:
            return
        packages.ensure(HOST_PACKAGES)
        if shutil.disk_usage(folder).free < _SPACE:
            raise TestbedError(f"the image needs {_SPACE >> 30} GiB free in {folder}")
        began = time.monotonic()
        print(f"building the machine's image in {folder}: a few minutes, once", flush=True)
        stamp.unlink(missing_ok=True)
        with tempfile.TemporaryDirectory(prefix="root-", dir=folder) as temporary:
            _build(folder, Path(temporary, "root"))
        stamp.write_text(wanted)
        print(f"image built in {time.monotonic() - began:.0f} s", flush=True)


def _fingerprint() -> str:
    """Changes with everything that goes into the image; not with the packages' versions, which are Debian stable's."""
    digest = hashlib.sha256(f"{sys.version_info[:2]} {os.uname().machine}".encode())
    inputs = [Path(__file__), CHECKOUT / "uv.lock", CHECKOUT / "pyproject.toml"]
    inputs += [Path(debian.__file__), Path(images.__file__), Path(images.__file__).with_name("pause.c")]
    for path in [*inputs, *sorted(path for path in _OVERLAY.rglob("*") if path.is_file())]:
        digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()


def _build(folder: Path, root: Path) -> None:
    with _step("packages"):
        _unpack(folder, root)
    with _step("settings"):
        shutil.copytree(_OVERLAY, root, dirs_exist_ok=True)
        _settings(folder, root)
    with _step("environment"):
        _environment(root)
    with _step("container images"):
        for name in images.BUILDERS:
            images.build(name, root / "root/images")
    with _step("disks"):
        _disks(folder, root)


@contextlib.contextmanager
def _step(name: str) -> Iterator[None]:
    began = time.monotonic()
    yield
    print(f"  {name}: {time.monotonic() - began:.0f} s", flush=True)


def _unpack(folder: Path, root: Path) -> None:
    """The packages' files; they are kept as an archive, so that a change of the rest does not install them again."""
    digest = hashlib.sha256(" ".join((SUITE, *VM_PACKAGES, "+", *_TO_INSTALL)).encode()).hexdigest()
    archive = folder / f"packages-{digest[:12]}.tar"
    if not archive.exists():
        for old in folder.glob("packages-*.tar*"):
            old.unlink()
        part = archive.with_name("packages-new.tar")
        _bootstrap(part)
        part.rename(archive)
    root.mkdir()
    run_quiet(
        "tar", "--extract", "--numeric-owner", "--xattrs", "--xattrs-include=*", "--file", archive, "--directory", root
    )


def _bootstrap(archive: Path) -> None:
    conf = "MODULES=list\\nCOMPRESS=gzip\\n"  # only what a virtual disk needs: packed and loaded in seconds
    hook = f'mkdir -p "$1/etc/initramfs-tools/conf.d"; printf "{conf}" > "$1/etc/initramfs-tools/conf.d/testvm"'
    apt = 'APT_CONFIG="$MMDEBSTRAP_APT_CONFIG" apt-get'
    download = f"{apt} clean; {apt} -q -y --no-install-recommends --download-only install {' '.join(_TO_INSTALL)}"
    kept = ["--skip=cleanup/apt/lists,cleanup/apt/cache", f"--customize-hook={download}"]
    debian.bootstrap(archive, VM_PACKAGES, [f"--essential-hook={hook}", *kept])


def _settings(folder: Path, root: Path) -> None:
    wants = root / "etc/systemd/system/multi-user.target.wants"
    wants.mkdir(parents=True, exist_ok=True)
    for unit in _ENABLED:
        (wants / Path(unit).name).symlink_to(unit)
    for unit in _MASKED:
        (root / "etc/systemd/system" / unit).symlink_to("/dev/null")
    _in_root(root, f"systemctl disable {' '.join(_NOT_AT_BOOT)}")
    key = folder / "key"
    if not key.exists():
        run_quiet("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key)
    (root / "root/.ssh").mkdir(mode=0o700, exist_ok=True)
    shutil.copy(key.with_suffix(".pub"), root / "root/.ssh/authorized_keys")
    (root / "etc/testvm").write_text("The machine of `make test-vm`: its tests change it as they like.\n")
    run_quiet("chroot", root, "passwd", "-d", "root")
    _in_root(root, "update-initramfs -u")


def _environment(root: Path) -> None:
    """The project's `.venv`, made inside by this machine's uv from its cache, so that little is downloaded twice."""
    environment.ensure(CHECKOUT)
    inside = root / INSIDE
    copy_checkout(inside)
    run_quiet("chroot", root, "python3", "-m", "venv", "--without-pip", f"/{INSIDE}/.venv")
    shutil.copy2(CHECKOUT / ".venv/bin/uv", inside / ".venv/bin/uv")
    _in_root(root, f"cd /{INSIDE} && PYTHONPATH=tools python3 -m testbed env")


_NAMESPACE = """
mount --bind /proc "$1/proc"
mount --bind /dev "$1/dev"
mkdir -p "$1/root/.cache/uv" "$2"
mount --bind "$2" "$1/root/.cache/uv"
mount --bind "$(readlink -f /etc/resolv.conf)" "$1/etc/resolv.conf"
[ ! -e "$3" ] || mount --bind "$3" "$1$3"
exec chroot "$1" sh -euc "$4"
"""


def _in_root(root: Path, script: str) -> None:
    """Run `script` in the tree, with this machine's network, certificates, proxies and cache of packages.

    In a mount namespace of its own: whatever happens, no mount is left.
    """
    cache = os.environ.get("UV_CACHE_DIR") or str(
        Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "uv"
    )
    kept = re.compile(r"(.*_proxy|UV_.*|PIP_.*|SSL_CERT_FILE)$", re.IGNORECASE)
    env = {name: value for name, value in os.environ.items() if kept.match(name) and name != "UV_CACHE_DIR"}
    env |= {"HOME": "/root", "PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LANG": "C.UTF-8", "UV_LINK_MODE": "copy"}
    if _CERTIFICATES.exists():
        env.setdefault("SSL_CERT_FILE", str(_CERTIFICATES))
    command = ["unshare", "--mount", "--propagation", "private", "sh", "-euc", _NAMESPACE, "sh"]
    done = subprocess.run(
        [*command, str(root), cache, str(_CERTIFICATES), script],
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise TestbedError(f"in the image, {script!r} failed:\n{done.stdout[-3000:]}")


def _disks(folder: Path, root: Path) -> None:
    (kernel,) = (root / "boot").glob("vmlinuz-*")
    (initrd,) = (root / "boot").glob("initrd.img-*")
    shutil.copy(kernel, folder / "vmlinuz")
    shutil.copy(initrd, folder / "initrd")
    shutil.rmtree(root / "root/.cache", ignore_errors=True)
    make_disk(folder / "disk.raw", _DISK, root)
    _make_sparse(folder / "swap.raw", _SWAP)
    run_quiet("mkswap", "-q", folder / "swap.raw")


def make_disk(path: Path, size: int, content: Path, label: str = "root") -> None:
    """An ext4 file system with the files of `content`, as a sparse file."""
    _make_sparse(path, size)
    lazy = "lazy_itable_init=1,lazy_journal_init=1"
    run_quiet("mke2fs", "-q", "-t", "ext4", "-L", label, "-E", lazy, "-O", "^metadata_csum", "-d", content, path)


def _make_sparse(path: Path, size: int) -> None:
    path.unlink(missing_ok=True)
    with path.open("wb") as file:
        file.truncate(size)
