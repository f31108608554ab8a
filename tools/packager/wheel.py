"""The wheel, and the tree of libraries that goes into the Debian package: pykubelet and what it needs, in the versions of uv.lock."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from testbed.debian import run_quiet
from testbed.host import TestbedError

#: The versions of what builds the wheel.
BUILD_TOOLS = Path(__file__).with_name("build.txt")
_WHEEL = "pykubelet-*.whl"
_PINNED = ("--require-hashes", "--only-binary=:all:")


def build_wheel(checkout: Path, out: Path, uv: Path) -> Path:
    """Build the wheel of `checkout` into the folder `out`, in place of older ones; returns its file."""
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out) as temporary:
        options = ("--wheel", f"--build-constraints={BUILD_TOOLS}", "--require-hashes", f"--out-dir={temporary}")
        run_quiet(uv, "build", "--quiet", *options, checkout, env=clean_environment())
        (built,) = Path(temporary).glob(_WHEEL)
        for old in out.glob(_WHEEL):
            old.unlink()
        return Path(shutil.move(built, out / built.name))


def export_requirements(checkout: Path, uv: Path, out: Path) -> None:
    """Write what the agent needs, with versions and hashes from uv.lock, to `out`, in pip's format."""
    options = ("--frozen", "--no-dev", "--no-emit-project", "--no-header", "--quiet", f"--output-file={out}")
    run_quiet(uv, "export", f"--project={checkout}", *options, env=clean_environment())


def collect_wheels(checkout: Path, out: Path, uv: Path, python: Path) -> list[Path]:
    """Put the wheel and those of its libraries, in the versions of uv.lock, into the folder `out`; returns the files."""
    with tempfile.TemporaryDirectory() as temporary:
        requirements = Path(temporary, "requirements.txt")
        export_requirements(checkout, uv, requirements)
        options = (
            f"--python-version={python.name.removeprefix('python')}",
            f"--requirement={requirements}",
            f"--dest={out}",
        )
        pip = uv.with_name("pip")
        run_quiet(pip, "--quiet", "download", *_PINNED, *options, env=clean_environment())
    return [build_wheel(checkout, out, uv), *sorted(out.glob("*.whl"))]


def install_tree(checkout: Path, target: Path, uv: Path, python: Path) -> None:
    """Install pykubelet and its libraries into the folder `target`, for the interpreter `python`; nothing is compiled."""
    with tempfile.TemporaryDirectory() as temporary:
        requirements = Path(temporary, "requirements.txt")
        export_requirements(checkout, uv, requirements)
        wheel = build_wheel(checkout, Path(temporary, "wheel"), uv)
        env = clean_environment()
        options = ("--quiet", f"--python={python}", f"--target={target}", "--link-mode=copy")
        run_quiet(uv, "pip", "install", *options, *_PINNED, f"--requirement={requirements}", env=env)
        run_quiet(uv, "pip", "install", *options, "--no-deps", wheel, env=env)
    shutil.rmtree(target / "bin", ignore_errors=True)
    (target / ".lock").unlink(missing_ok=True)
    for name in ("direct_url.json", "uv_cache.json"):  # where this machine had the wheel
        for path in target.glob(f"*.dist-info/{name}"):
            path.unlink()
    for path in target.rglob("*"):  # some wheels have every file executable
        if path.is_file() and path.suffix != ".so":
            path.chmod(0o644)


def compile_tree(target: Path, prefix: str, epoch_s: int, python: Path) -> None:
    """Compile what `target` has, which will be found at `prefix`; all files get the time `epoch_s`, which the bytecode names."""
    for path in [*target.rglob("*"), target]:
        os.utime(path, (epoch_s, epoch_s), follow_symlinks=False)
    options = ("-q", "--invalidation-mode=timestamp", "-s", str(target), "-p", prefix)
    run_quiet(python, "-I", "-m", "compileall", *options, target, env=clean_environment())


def clean_environment() -> dict[str, str]:
    """This process's environment without what changes how Python runs or where uv installs."""
    return {
        name: value for name, value in os.environ.items() if not name.startswith("PYTHON") and name != "VIRTUAL_ENV"
    }


def find_uv(checkout: Path) -> Path:
    """The uv of the project's environment. Raises TestbedError if there is none."""
    uv = checkout / ".venv/bin/uv"
    if not uv.exists():
        raise TestbedError(f"{uv} is missing: make env")
    return uv


def commit_time(checkout: Path) -> int:
    """SOURCE_DATE_EPOCH: that variable, or the time of the last commit; 0 outside of a git checkout."""
    given = os.environ.get("SOURCE_DATE_EPOCH", "")
    if given.isdigit():
        return int(given)
    command = ["git", "-c", "safe.directory=*", "-C", str(checkout), "log", "-1", "--format=%ct"]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    return int(done.stdout) if done.returncode == 0 else 0
