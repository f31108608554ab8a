"""Other container runtimes than the system's, and the tests that depend on the runtime, on each of them.

A runtime is `installed` (the system's containerd), a suite of Debian, whose containerd and runc are unpacked into a folder
and not installed, `docker` (Docker Engine of this machine's suite, unpacked likewise), `docker-` and a suite for Docker Engine, containerd
and runc of that suite, or a folder of programs: containerd's, `crio` and `pinns`, or `dockerd`. Needs root.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import xml.etree.ElementTree as Xml
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from testbed import containerd, debian, packages
from testbed.host import TestbedError
from testbed.packages import DOCKER_PACKAGE
from testbed.private_runtime import CONTAINERD, CRIO, DOCKER, DOCKERD

INSTALLED = "installed"
#: The runtimes of `make run`.
OFFERED = (CONTAINERD, CRIO, DOCKER)
#: containerd 1.6 is Debian 12's own; 1.7 and 2.1 are those of the next suites.
DEFAULT = (INSTALLED, "trixie", "forky", DOCKER)
#: The programs that must be in one folder, by kind of runtime; containerd first, where both are.
_PROGRAMS = {CONTAINERD: ("containerd", "containerd-shim-runc-v2"), CRIO: (CRIO, "pinns")}
_DOCKER_OF = f"{DOCKER}-"
TESTS = (
    "tests/edges/cri/test_contract.py",
    "tests/tools/test_containerd.py",
    "tests/provide/images/test_registry.py",
    "tests/act/runtime/test_log_rotation.py",
    "tests/act/runtime/test_removal.py",
    "tests/act/runtime/test_rendered_for_real.py",
    "tests/observe/probes/test_for_real.py",
    *(
        f"tests/agent/test_{name}.py"
        for name in (
            *("life", "probes", "logs", "hooks", "limits", "resize", "restart", "runtime_faults", "pulls"),
            *("small_image_disk", "user_namespaces", "image_volumes", "devices", "resource_claims", "server"),
            *("websocket", "failed_start", "container", "observability", "placement", "static_volumes"),
            *("bulkheads", "placement_shown", "adopted_images"),
        )
    ),
)
#: runc is linked against a newer libc than Debian 12's, so it gets its own.
_LIBRARIES = ("libc6", "libseccomp2")
_LOADER = "ld-linux-x86-64.so.2"
_FILES = ("libc.so.6", "libpthread.so.0", "libseccomp.so.2", _LOADER)


@dataclass(frozen=True, slots=True)
class Result:
    """What became of the tests on one runtime. `failures`: names of tests."""

    runtime: str
    version: str
    passed: int
    failed: int
    skipped: int
    failures: tuple[str, ...]


def test(checkout: Path, program: Path, folder: Path, names: Sequence[str], workers: int) -> int:
    """Run the tests on each runtime and print a table; the exit code. `program`: the Python that has pytest."""
    results = []
    for name in names or DEFAULT:
        bin_dir = find(name, folder)
        print(f"{name}: {version(bin_dir)}", flush=True)
        results.append(_run(checkout, program, folder, name, bin_dir, workers))
    for line in render(results):
        print(line)
    return 1 if any(result.failed or not result.passed for result in results) else 0


def find(name: str, folder: Path) -> Path | None:
    """The folder of the programs of a runtime; None for the system's. Raises TestbedError."""
    if name == INSTALLED:
        return None
    if "/" in name:
        found = Path(name).resolve()
        if _program(found) is None:
            raise TestbedError(f"{found} has neither containerd nor crio nor dockerd")
        return found
    if name == DOCKER:
        return docker_bin()
    suite = name.removeprefix(_DOCKER_OF)
    more = ("docker.io",) if suite != name else ()
    return _unpack(suite, more, folder.resolve() / name)  # apt takes other paths as below its own folder


def prepare(runtime: str | None, folder: Path, search: str | None = None) -> str:
    """Install what a node with this runtime needs; returns the folder of its programs, "" for Debian's containerd.

    Without a name, it is the runtime that `folder` already has, else the containerd or CRI-O that comes first on `search`
    (default: PATH), else Debian's containerd, which is installed. Raises TestbedError.
    """
    search = os.environ.get("PATH", "") if search is None else search
    known = containerd.load(folder)
    if known is not None and runtime not in (None, known.kind):
        raise TestbedError(f"{folder} runs on {known.kind}, not on {runtime}: remove it first (make down)")
    if known is not None:
        wanted, bin_dir = known.kind, Path(known.bin_dir) if known.bin_dir else None
    else:
        wanted, bin_dir = choose(runtime, search)
    packages.ensure(packages.NODE if bin_dir is None else packages.NODE_WITHOUT_RUNTIME)
    if wanted == DOCKER:
        bin_dir = docker_bin()
    print(f"container runtime: {version(bin_dir)}, a private one in {folder}", flush=True)
    return "" if bin_dir is None else str(bin_dir)


def choose(runtime: str | None, search: str) -> tuple[str, Path | None]:
    """The kind of a runtime, and the folder of its programs on the path `search`; None: those of Debian's package.

    Raises TestbedError for a runtime that is asked for and is not there.
    """
    if runtime == DOCKER:
        return DOCKER, None
    for name in search.split(os.pathsep):
        for kind, programs in _PROGRAMS.items():
            folder = Path(name).resolve()
            if name and runtime in (None, kind) and all(os.access(folder / program, os.X_OK) for program in programs):
                return kind, None if kind == CONTAINERD and str(folder) in packages.SYSTEM_FOLDERS else folder
    if runtime == CRIO:
        raise TestbedError("crio and pinns are not on PATH")
    return CONTAINERD, None


def docker_bin() -> Path:
    """The folder of Docker Engine's program, which is unpacked first if it is missing. Raises TestbedError."""
    packages.ensure(packages.DOCKER)
    packages.unpack_missing(DOCKER_PACKAGE)
    program = packages.unpacked(DOCKER_PACKAGE, DOCKERD)
    if program is None:
        raise TestbedError(f"{DOCKERD} is missing: make packages")
    return program.parent


def version(bin_dir: Path | None) -> str:
    """What the runtime's program reports about itself, in one line."""
    program = (bin_dir and _program(bin_dir)) or Path(CONTAINERD)
    command = [str(program), "--version"]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    return " ".join(done.stdout.partition("\n")[0].split()) or f"{program.name} does not report its version"


def _program(bin_dir: Path) -> Path | None:
    """The program of the runtime in a folder."""
    found = (bin_dir / name for name in (CRIO, DOCKERD, CONTAINERD))
    return next((program for program in found if program.exists()), None)


def _unpack(suite: str, more: Sequence[str], target: Path) -> Path:
    """containerd, runc and the programs of `more` packages of a suite of Debian in `target`, which is kept for the next time."""
    programs = target / "bin"
    if (programs / "containerd").exists():
        return programs
    packages.ensure({"patchelf": packages.has("patchelf")})
    shutil.rmtree(target, ignore_errors=True)
    for name in ("lists/partial", "cache/archives/partial", "debs", "files", "part/lib"):
        (target / name).mkdir(parents=True)
    (target / "sources.list").write_text(f"deb {debian.archive()} {suite} main\n")
    settings = {
        "Dir::State::lists": target / "lists",
        "Dir::Cache": target / "cache",
        "Dir::Etc::sourcelist": target / "sources.list",
        "Dir::Etc::sourceparts": "/dev/null",
        "APT::Sandbox::User": "root",
    }
    options = [f"-o{key}={value}" for key, value in settings.items()]
    debian.run_quiet("apt-get", *options, "update", "-q")
    debian.run_quiet(
        "apt-get", *options, "download", "-q", "containerd", "runc", *more, *_LIBRARIES, cwd=target / "debs"
    )
    for package in (target / "debs").iterdir():
        debian.run_quiet("dpkg-deb", "-x", package, target / "files")
    part, files = target / "part", target / "files"
    for file in (*(files / "usr" / "bin").iterdir(), *(files / "usr" / "sbin").iterdir()):
        if file.exists():  # a link may lead into a package that is not there
            shutil.copy(file, part)  # what a link points to
    for name in _FILES:
        shutil.copy(next(files.rglob(name)), part / "lib")
    loader, libraries = programs / "lib" / _LOADER, programs / "lib"
    debian.run_quiet("patchelf", "--set-interpreter", loader, "--set-rpath", libraries, part / "runc")
    for name in ("lists", "cache", "debs", "files"):
        shutil.rmtree(target / name)
    return part.rename(programs)


def _run(checkout: Path, program: Path, folder: Path, name: str, bin_dir: Path | None, workers: int) -> Result:
    folder.mkdir(parents=True, exist_ok=True)
    report = folder.resolve() / f"{name.strip('/').replace('/', '_')}.xml"
    report.unlink(missing_ok=True)
    command = [str(program), "-m", "pytest", "-q", "-n", str(workers), "--dist", "loadfile", "--no-loadscope-reorder"]
    command += ["-m", "integration and not cluster and not crash", f"--junit-xml={report}", *TESTS]
    environment = {**os.environ, "TESTBED_BIN": str(bin_dir) if bin_dir is not None else ""}
    subprocess.run(command, cwd=checkout, env=environment, stdin=subprocess.DEVNULL, check=False)
    if not report.exists():
        raise TestbedError(f"{name}: pytest has written no report")
    return read_report(name, version(bin_dir), report)


def read_report(runtime: str, about: str, report: Path) -> Result:
    """The result in a JUnit report of pytest."""
    cases = list(Xml.parse(report).getroot().iter("testcase"))
    failed = [case for case in cases if case.find("failure") is not None or case.find("error") is not None]
    skipped = [case for case in cases if case.find("skipped") is not None]
    names = tuple(f"{case.get('classname', '').rpartition('.')[2]}::{case.get('name')}" for case in failed)
    return Result(runtime, about, len(cases) - len(failed) - len(skipped), len(failed), len(skipped), names)


def render(results: Sequence[Result]) -> list[str]:
    """The lines of a table, and the tests that failed."""
    rows = [("RUNTIME", "PASSED", "FAILED", "SKIPPED", "VERSION")]
    rows += [
        (result.runtime, str(result.passed), str(result.failed), str(result.skipped), result.version)
        for result in results
    ]
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return lines + [f"{result.runtime}: {name}" for result in results for name in result.failures]
