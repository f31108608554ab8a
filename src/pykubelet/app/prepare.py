"""Prepares the machine before any component starts: directories, limits, kernel parameters.

If a step fails that the agent can work without, it logs a warning; otherwise it raises AgentStartError.
"""

from __future__ import annotations

from pykubelet.base.kit.log import Log
from pykubelet.base.model.paths import CONTAINER_LOG_LINKS, Paths
from pykubelet.config.settings import Settings
from pykubelet.desired.roster.allocation_state import ALLOCATED, MAX_STATE_BYTES, is_of_another
from pykubelet.edges.host.fs.errors import HostError
from pykubelet.edges.host.fs.files import make_dirs, read_bytes, remove_file, remove_temporaries
from pykubelet.edges.host.fs.mounts import make_shared
from pykubelet.edges.host.proc import oom, sysctl
from pykubelet.edges.host.proc.machine import Machine, read_machine

log = Log("app")


class AgentStartError(Exception):
    """The agent cannot start. The message is shown to the user."""


def prepare_machine(settings: Settings, paths: Paths) -> Machine:
    """Create the agent's directories, set limits and kernel parameters, and read the facts of the machine.

    Raises AgentStartError.
    """
    try:
        make_dirs(paths.root, 0o750)
        make_dirs(paths.pods, 0o750)
        make_dirs(paths.plugins, 0o750)
        make_dirs(paths.plugin_sockets, 0o755)
        make_dirs(paths.logs, 0o755)
        make_dirs(CONTAINER_LOG_LINKS, 0o755)
        make_shared(paths.root)
        flags = settings.flags
        ids = (flags.machine_id_file.split(","), flags.boot_id_file.split(","))
        machine = read_machine("/", paths.root, *ids)
    except HostError as error:
        raise AgentStartError(f"cannot prepare the node's directories: {error}") from error
    for directory in (paths.root, settings.flags.cert_dir):
        try:
            remove_temporaries(directory)
        except HostError as error:
            log.warning("incomplete files of an earlier run cannot be removed", error=error)
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
                raise AgentStartError("; ".join(str(flag) for flag in wrong))
        else:
            for flag in sysctl.set_kernel_defaults():
                log.info("kernel parameter set", name=flag.name, value=flag.expected, before=flag.actual)
    except HostError as error:
        log.warning("kernel parameters cannot be set", error=error)


def kernel_version(machine: Machine) -> tuple[int, int]:
    """The major and minor version of a release such as `6.1.0-18-amd64`; a very high version if it cannot be parsed."""
    parts = machine.kernel_version.split(".")
    try:
        return int(parts[0]), int(parts[1].split("-")[0])
    except (IndexError, ValueError):
        return 1 << 16, 0


def app_armor_enabled() -> bool:
    """Whether AppArmor is enabled in the kernel."""
    try:
        with open("/sys/module/apparmor/parameters/enabled", encoding="ascii") as stream:
            return stream.read().startswith("Y")
    except OSError:
        return False


def forget_outdated(root: str) -> None:
    """Remove the statuses and the running hooks in the root directory if another agent has run since they were written."""
    try:
        if not is_of_another(read_bytes(f"{root}/{ALLOCATED}", MAX_STATE_BYTES)):
            return
        from pykubelet.act.pods.hooks import FILE as HOOKS  # it is rare, and the health port does not wait for it

        removed = [remove_file(f"{root}/{name}") for name in ("pod_statuses", HOOKS, f"{HOOKS}.bak")]
        if any(removed):
            log.info("what an earlier run has kept of pods is not used: another agent has run since")
    except HostError as error:
        if not error.is_not_found:
            log.warning("it is not known whether another agent has run since the last run", error=error)
