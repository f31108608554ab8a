"""Prepares the machine before any room starts: directories, limits, kernel parameters, the lock file.

What the kernel refuses and the agent can live without is a warning; what it cannot live without is a StartError.
"""

from __future__ import annotations

import fcntl
import os

from pykubelet.base.kit.log import Log
from pykubelet.base.model.paths import CONTAINER_LOG_LINKS, Paths
from pykubelet.config.settings import Settings
from pykubelet.edges.host.fs.errors import HostError
from pykubelet.edges.host.fs.files import make_dirs, remove_temporaries
from pykubelet.edges.host.fs.mounts import make_shared
from pykubelet.edges.host.proc import oom, sysctl
from pykubelet.edges.host.proc.machine import Machine, read_machine

log = Log("app")


class StartError(Exception):
    """The agent cannot start here; the message is for the person who starts it."""


def prepare_machine(settings: Settings, paths: Paths) -> Machine:
    """Make what must be there and read what the machine is. Raises StartError."""
    try:
        make_dirs(paths.root, 0o750)
        make_dirs(paths.pods, 0o750)
        make_dirs(paths.logs, 0o755)
        make_dirs(CONTAINER_LOG_LINKS, 0o755)
        make_shared(paths.root)
        machine = read_machine("/", paths.root)
    except HostError as error:
        raise StartError(f"cannot prepare the node's directories: {error}") from error
    for directory in (paths.root, settings.flags.cert_dir):
        try:
            remove_temporaries(directory)
        except HostError as error:
            log.warning("what an earlier run left incomplete cannot be removed", error=error)
    for problem in (
        oom.write_own_oom_score(settings.config.oomScoreAdj),
        oom.raise_open_files(settings.config.maxOpenFiles),
    ):
        if problem is not None:
            log.warning("the kernel refuses a limit of the agent", error=problem)
    _kernel_parameters(settings)
    return machine


def _kernel_parameters(settings: Settings) -> None:
    try:
        if settings.config.protectKernelDefaults:
            wrong = sysctl.check_kernel_defaults()
            if wrong:
                raise StartError("; ".join(str(flag) for flag in wrong))
        else:
            for flag in sysctl.set_kernel_defaults():
                log.info("kernel parameter set", name=flag.name, value=flag.expected, before=flag.actual)
    except HostError as error:
        log.warning("kernel parameters cannot be set", error=error)


def take_lock(path: str) -> int | None:
    """Hold --lock-file for as long as the process lives; its descriptor. Raises StartError when somebody has it."""
    if not path:
        return None
    try:
        descriptor = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise StartError(f"lock file {path} is held by another process") from error
    except OSError as error:
        raise StartError(f"lock file {path}: {error}") from error
    return descriptor


def kernel_version(machine: Machine) -> tuple[int, int]:
    """Major and minor of `6.1.0-18-amd64`; very new when it cannot be read."""
    parts = machine.kernel_version.split(".")
    try:
        return int(parts[0]), int(parts[1].split("-")[0])
    except (IndexError, ValueError):
        return 1 << 16, 0


def app_armor_enabled() -> bool:
    try:
        with open("/sys/module/apparmor/parameters/enabled", encoding="ascii") as stream:
            return stream.read().startswith("Y")
    except OSError:
        return False
