"""Finds the drivers of flexVolume volumes, and calls them: programs that print their answer as JSON. Blocks: use `base.kit.flight`.

Owns: the layout of the drivers' directory, and the format of answers. Source: "Flexvolume" in the Kubernetes community's
documents for developers of storage (`devel/sig-storage/flexvolume.md`).
"""

from __future__ import annotations

import posixpath
from collections.abc import Sequence

import msgspec

from pykubelet.base.kit.values import Value, field
from pykubelet.base.model.plugins import FlexDriver
from pykubelet.edges.host.fs.errors import HostError
from pykubelet.edges.host.fs.files import FileKind, FileStat, list_dir, make_dirs, stat_file
from pykubelet.edges.host.fs.programs import run_program

#: More drivers than these are ignored.
MAX_DRIVERS = 64
#: How much of a driver's output is read: bytes.
ANSWER_BYTES = 64 << 10
INIT_S = 30.0
_SHOWN = 1024


class FlexCallError(Exception):
    """A call of a driver failed; the text is shown to users. `is_unsupported`: the driver has no such command.

    `is_unfinished`: the driver was ended because of its deadline.
    """

    def __init__(self, text: str, *, is_unsupported: bool = False, is_unfinished: bool = False) -> None:
        super().__init__(text)
        self.is_unsupported = is_unsupported
        self.is_unfinished = is_unfinished


class FlexCapabilities(Value):
    """The capabilities in the answer to `init`; the defaults are for those that a driver does not name."""

    attach: bool = True
    selinuxRelabel: bool = True
    supportsMetrics: bool = False
    fsGroup: bool = True
    requiresFSResize: bool = True


class FlexAnswer(Value):
    """What a driver printed. `device`: the path of the device, from `waitforattach`."""

    status: str = ""
    message: str = ""
    device: str = ""
    capabilities: FlexCapabilities = field(default_factory=FlexCapabilities)


class FlexProgram(Value):
    """The executable of a driver. `driver`: its name, such as `example.com/nfs`. `stamp`: changes with the file."""

    driver: str
    path: str
    stamp: tuple[int, int, int]


class FlexScan(Value):
    """The drivers by name, and the directories to watch."""

    programs: dict[str, FlexProgram]
    directories: tuple[str, ...]


def scan_drivers(root: str) -> FlexScan:
    """The drivers in `root`: `<vendor>~<driver>/<driver>`, or `<driver>/<driver>`. A missing `root` is created.

    Names that begin with a dot are ignored, as are files that cannot be executed. HostError when `root` cannot be read.
    """
    make_dirs(root, 0o755, exact=False)
    programs: dict[str, FlexProgram] = {}
    directories = [root]
    for entry in sorted(list_dir(root), key=lambda entry: entry.name):
        if entry.name.startswith(".") or not entry.name.isprintable() or len(programs) >= MAX_DRIVERS:
            continue
        path = f"{root}/{entry.name}/{entry.name.rpartition('~')[2]}"
        directory = stat_file(posixpath.dirname(path)) if entry.kind is FileKind.SYMLINK else None
        if entry.kind is not FileKind.DIRECTORY and (directory is None or not directory.is_dir):
            continue
        directories.append(posixpath.dirname(path))
        found = _stat(path)
        if found is not None and found.is_file and found.mode & 0o111:
            name = entry.name.replace("~", "/")
            programs[name] = FlexProgram(name, path, (found.inode, found.mtime_ns, found.size))
    return FlexScan(programs, tuple(directories[: MAX_DRIVERS + 1]))


def _stat(path: str) -> FileStat | None:
    try:
        return stat_file(path)
    except HostError:
        return None


def init_driver(program: FlexProgram) -> FlexDriver:
    """Call `init`, as is done once before a driver is used. FlexCallError."""
    able = call_driver(program.path, "init", (), INIT_S).capabilities
    return FlexDriver(
        program.driver,
        program.path,
        attaches=able.attach,
        relabels=able.selinuxRelabel,
        is_measured=able.supportsMetrics,
        applies_group=able.fsGroup,
        grows=able.requiresFSResize,
    )


def call_driver(
    program: str, command: str, arguments: Sequence[str], deadline_s: float, subject: str = ""
) -> FlexAnswer:
    """The answer of a driver that reports success; FlexCallError for any other end. `subject`: the directory that it works on."""
    try:
        ran = run_program(program, (command, *arguments), deadline_s, subject=subject, limit=ANSWER_BYTES)
    except HostError as error:
        raise FlexCallError(str(error), is_unfinished=error.errno_name == "ETIMEDOUT") from error
    try:
        answer = msgspec.json.decode(ran.output, type=FlexAnswer)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        reason = f"{ran.reason}, " if ran.status != 0 else ""
        raise FlexCallError(
            f"{command} command failed: {reason}the driver did not print an answer in JSON: {ran.output[:_SHOWN]!r}"
        ) from error
    if answer.status == "Not supported":
        raise FlexCallError(answer.status, is_unsupported=True)
    if answer.status != "Success":
        message = answer.message[:_SHOWN]
        raise FlexCallError(f"{command} command failed, status: {answer.status[:_SHOWN]}, reason: {message}")
    if ran.status != 0:
        raise FlexCallError(f"{command} command failed: {ran.reason}, though the driver reports success")
    return answer
