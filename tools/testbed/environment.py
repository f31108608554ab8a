"""The virtual environment: `.venv` with exactly what `uv.lock` lists, and the command `pykubelet`.

What is installed is compiled, and so is the checkout's own code, which the environment only points at: a start without
bytecode compiles some hundred modules first, and where PYTHONDONTWRITEBYTECODE is set, again at each start.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path

from testbed import packages
from testbed.host import TestbedError

OLDEST = (3, 11)
#: The version of uv and the hashes of its files, in pip's format.
_UV = Path(__file__).with_name("uv.txt")


def ensure(checkout: Path) -> Path:
    """Make or update `<checkout>/.venv`; returns its pykubelet. Quick when the lock file has not changed."""
    folder = checkout / ".venv"
    _sync(checkout, folder)
    compile_sources(folder / "bin" / "python", checkout / "src")
    return folder / "bin" / "pykubelet"


def compile_sources(python: Path, source: Path) -> None:
    """Write the bytecode of what has changed below `source`; 0.2 s when nothing has."""
    _run([str(python), "-m", "compileall", "-q", str(source)], python.parents[1])


def _sync(checkout: Path, folder: Path) -> None:
    program, stamp = folder / "bin" / "pykubelet", folder / "synced"
    wanted = fingerprint(checkout)
    if program.exists() and stamp.exists() and stamp.read_text() == wanted:
        return
    if not _works(folder):
        if sys.version_info < OLDEST:
            raise TestbedError(f"{sys.executable} is older than Python 3.11: name a newer one, make PYTHON=python3.12")
        packages.ensure(packages.ENVIRONMENT)
        shutil.rmtree(folder, ignore_errors=True)
        print(f"making {folder}", flush=True)
        venv.create(folder, with_pip=True)
    python, uv = str(folder / "bin" / "python"), folder / "bin" / "uv"
    if not (folder / "bin" / "pip").exists():
        _run([python, "-m", "ensurepip"], folder)
    _run([python, "-m", "pip", "install", "--quiet", "--require-hashes", "-r", str(_UV)], folder)
    _run([str(uv), "sync", "--active", "--frozen", "--compile-bytecode", "--quiet", "--project", str(checkout)], folder)
    stamp.write_text(wanted)


def fingerprint(checkout: Path) -> str:
    """Changes with the lock file, the project file, the interpreter, and the place: scripts hold absolute paths."""
    digest = hashlib.sha256(f"{sys.version} {checkout}".encode())
    for path in (checkout / "uv.lock", checkout / "pyproject.toml", _UV):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def _works(folder: Path) -> bool:
    """Whether the environment's interpreter runs and is new enough."""
    script = f"import sys; sys.exit(sys.version_info < {OLDEST})"
    try:
        return subprocess.run([folder / "bin" / "python", "-c", script], check=False).returncode == 0
    except OSError:
        return False


def _run(command: list[str], folder: Path) -> None:
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    env["VIRTUAL_ENV"] = str(folder)
    if subprocess.run(command, env=env, stdin=subprocess.DEVNULL, check=False).returncode != 0:
        raise TestbedError(f"failed: {' '.join(command)}")
