"""Builds small container images as docker-archive tars, from files, without a registry and without a build tool.

Owns the images that the examples, tests and benchmarks run. Does not import them: see `containerd.py`. The same input
gives the same bytes, so an image that is already in the runtime is recognised by its digest.
"""

from __future__ import annotations

import hashlib
import io
import json
import platform
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

PAUSE = "localhost/pause:1"
BUSYBOX = "localhost/busybox:1"
NONROOT = "localhost/nonroot:1"
NAMED_USER = "localhost/named-user:1"
DEFAULTS = "localhost/defaults:1"
WRONG_PLATFORM = "localhost/wrong-platform:1"

_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64", "armv7l": "arm", "ppc64le": "ppc64le", "s390x": "s390x"}
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_PASSWD = (
    "root:x:0:0:root:/root:/bin/sh\n"
    "daemon:x:1:1:daemon:/usr/sbin:/bin/false\n"
    "worker:x:1000:1000:worker:/home/worker:/bin/sh\n"
    "nobody:x:65534:65534:nobody:/nonexistent:/bin/false\n"
)
_GROUP = "root:x:0:\ndaemon:x:1:\nworker:x:1000:\nextra:x:50000:worker\nnogroup:x:65534:\n"
_PAUSE_SOURCE = Path(__file__).with_name("pause.c")
# Without a compiler a shell does the same: `wait` reaps every child, also adopted ones.
_PAUSE_SCRIPT = "trap 'exit 0' TERM INT; while :; do sleep 2147483647 & wait $!; done"


class ImageError(Exception):
    """An image cannot be built on this machine; the message names what is missing."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One path of an image: a regular file (`data`), a symbolic link (`link`) or a directory (neither)."""

    data: bytes | None = None
    link: str | None = None
    mode: int = 0o755
    uid: int = 0
    gid: int = 0


@dataclass(frozen=True, slots=True)
class Config:
    """The process that the image defines; the fields of the image configuration of the same names.

    `architecture` is a Go name (amd64); empty means this machine's.
    """

    entrypoint: tuple[str, ...] = ()
    cmd: tuple[str, ...] = ()
    env: tuple[str, ...] = (f"PATH={_PATH}",)
    user: str = ""
    working_dir: str = ""
    stop_signal: str = ""
    volumes: tuple[str, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
    architecture: str = ""


def build_image(name: str, files: Mapping[str, Entry], config: Config, out: Path) -> str:
    """Write the image `name` (host/name:tag) with one layer of `files` to `out`; returns the image ID (sha256:...).

    Paths are absolute paths in the image. Parents are made as needed. `out` is replaced atomically.
    """
    with tempfile.TemporaryDirectory() as folder:
        layer = Path(folder, "layer.tar")
        layer.write_bytes(_layer(files))
        return write_archive(name, layer, config, out)


def write_archive(name: str, layer: Path, config: Config, out: Path) -> str:
    """Write the image `name` with the one layer in the tar file `layer` to `out`, atomically; returns the image ID."""
    with layer.open("rb") as file:
        layer_digest = hashlib.file_digest(file, "sha256").hexdigest()
    settings: dict[str, object] = {"Env": list(config.env)}
    for key, value in (
        ("Entrypoint", list(config.entrypoint)),
        ("Cmd", list(config.cmd)),
        ("User", config.user),
        ("WorkingDir", config.working_dir),
        ("StopSignal", config.stop_signal),
        ("Volumes", {path: {} for path in config.volumes}),
        ("Labels", dict(config.labels)),
    ):
        if value:
            settings[key] = value
    document = {
        "architecture": config.architecture or _ARCHITECTURES.get(platform.machine(), platform.machine()),
        "os": "linux",
        "config": settings,
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{layer_digest}"]},
    }
    raw = json.dumps(document, sort_keys=True).encode()
    image_id = hashlib.sha256(raw).hexdigest()
    manifest = [{"Config": f"{image_id}.json", "RepoTags": [name], "Layers": [f"{layer_digest}.tar"]}]
    out.parent.mkdir(parents=True, exist_ok=True)
    part = out.with_name(out.name + ".part")
    with tarfile.open(part, "w", format=tarfile.PAX_FORMAT) as tar:
        _add_file(tar, f"{image_id}.json", raw)
        with layer.open("rb") as file:
            tar.addfile(_info(f"{layer_digest}.tar", layer.stat().st_size), file)
        _add_file(tar, "manifest.json", json.dumps(manifest).encode())
    part.replace(out)
    return f"sha256:{image_id}"


def _add_file(tar: tarfile.TarFile, name: str, data: bytes) -> None:
    tar.addfile(_info(name, len(data)), io.BytesIO(data))


def _info(name: str, size: int) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.size, info.mode = size, 0o644
    return info


def _layer(files: Mapping[str, Entry]) -> bytes:
    entries = {path.strip("/"): entry for path, entry in files.items()}
    for path in list(entries):
        parent = path.rpartition("/")[0]
        while parent:
            entries.setdefault(parent, Entry())
            parent = parent.rpartition("/")[0]
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for path in sorted(entries):
            entry = entries[path]
            info = tarfile.TarInfo(path)
            info.mode, info.uid, info.gid = entry.mode, entry.uid, entry.gid
            if entry.link is not None:
                info.type, info.linkname, info.mode = tarfile.SYMTYPE, entry.link, 0o777
                tar.addfile(info)
            elif entry.data is not None:
                info.size = len(entry.data)
                tar.addfile(info, io.BytesIO(entry.data))
            else:
                info.type = tarfile.DIRTYPE
                tar.addfile(info)
    return buffer.getvalue()


def busybox_binary() -> Path:
    """The machine's statically linked busybox (Debian package busybox-static)."""
    found = shutil.which("busybox", path=f"{_PATH}")
    if found is None:
        raise ImageError("no busybox on this machine: install the Debian package busybox-static")
    if _needs_interpreter(Path(found).read_bytes()):
        raise ImageError(f"{found} is linked dynamically: install the Debian package busybox-static")
    return Path(found)


def _needs_interpreter(elf: bytes) -> bool:
    """Whether a little-endian 64-bit ELF file has a PT_INTERP header; other files are taken as they are."""
    if elf[:6] != b"\x7fELF\x02\x01":
        return False
    offset = int.from_bytes(elf[32:40], "little")
    size, count = int.from_bytes(elf[54:56], "little"), int.from_bytes(elf[56:58], "little")
    headers = (elf[offset + i * size : offset + i * size + 4] for i in range(count))
    return any(int.from_bytes(header, "little") == 3 for header in headers)


def busybox_files() -> dict[str, Entry]:
    """A root file system: busybox under every name it has, users and groups, and the usual empty directories."""
    binary = busybox_binary()
    listed = subprocess.run([binary, "--list"], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=True)
    files = {f"/bin/{name}": Entry(link="busybox") for name in listed.stdout.split() if "/" not in name}
    files |= {
        "/bin/busybox": Entry(data=binary.read_bytes()),
        "/usr/bin/env": Entry(link="/bin/busybox"),
        "/etc/passwd": Entry(data=_PASSWD.encode(), mode=0o644),
        "/etc/group": Entry(data=_GROUP.encode(), mode=0o644),
        "/tmp": Entry(mode=0o1777),
        "/root": Entry(mode=0o700),
        "/home/worker": Entry(uid=1000, gid=1000),
        "/var/log": Entry(),
        "/dev": Entry(),
        "/proc": Entry(),
        "/sys": Entry(),
    }
    return files


def compile_pause() -> bytes | None:
    """`pause.c` as a static program, or None where the machine has no working C compiler."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        return None
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder, "pause")
        command = [compiler, "-Os", "-static", "-s", "-o", str(program), str(_PAUSE_SOURCE)]
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=False)
        return program.read_bytes() if done.returncode == 0 else None


def pause_parts(program: bytes | None) -> tuple[dict[str, Entry], Config]:
    """Files and configuration of the pause image: the compiled `program`, or a shell loop when there is none."""
    if program is not None:
        return {"/pause": Entry(data=program)}, Config(entrypoint=("/pause",))
    files = {
        "/bin/busybox": Entry(data=busybox_binary().read_bytes()),
        "/bin/sh": Entry(link="busybox"),
        "/bin/sleep": Entry(link="busybox"),
    }
    return files, Config(entrypoint=("/bin/sh", "-c", _PAUSE_SCRIPT))


def _pause(out: Path) -> str:
    return build_image(PAUSE, *pause_parts(compile_pause()), out)


def _busybox(out: Path) -> str:
    return build_image(BUSYBOX, busybox_files(), Config(cmd=("sh",)), out)


def _nonroot(out: Path) -> str:
    return build_image(NONROOT, busybox_files(), Config(cmd=("sh",), user="1234"), out)


def _named_user(out: Path) -> str:
    return build_image(NAMED_USER, busybox_files(), Config(cmd=("sh",), user="worker"), out)


def _defaults(out: Path) -> str:
    """An image whose every default shows: prints its directory, a variable and its arguments, then sleeps."""
    script = 'echo "dir=$(pwd) color=$COLOR args=$*"; trap "echo got USR1; exit 7" USR1; while :; do sleep 1; done'
    config = Config(
        entrypoint=("/bin/sh", "-c", script, "defaults"),
        cmd=("one", "two"),
        env=(f"PATH={_PATH}", "COLOR=blue"),
        working_dir="/home/worker",
        stop_signal="SIGUSR1",
        volumes=("/data",),
        labels={"org.opencontainers.image.title": "defaults"},
    )
    return build_image(DEFAULTS, busybox_files(), config, out)


def _wrong_platform(out: Path) -> str:
    other = "s390x" if platform.machine() != "s390x" else "amd64"
    files = {"/bin/true": Entry(data=b"not a program of this machine\n")}
    return build_image(WRONG_PLATFORM, files, Config(cmd=("/bin/true",), architecture=other), out)


BUILDERS: Mapping[str, Callable[[Path], str]] = {
    PAUSE: _pause,
    BUSYBOX: _busybox,
    NONROOT: _nonroot,
    NAMED_USER: _named_user,
    DEFAULTS: _defaults,
    WRONG_PLATFORM: _wrong_platform,
}


def archive_path(name: str, folder: Path) -> Path:
    """Where `build` puts the archive of the image `name`."""
    return folder / (name.rpartition("/")[2].replace(":", "-") + ".tar")


def build(name: str, folder: Path) -> Path:
    """Build one of `BUILDERS` into `folder`, unless its archive is there already and not older than this file."""
    out = archive_path(name, folder)
    if not out.exists() or out.stat().st_mtime < Path(__file__).stat().st_mtime:
        BUILDERS[name](out)
    return out
