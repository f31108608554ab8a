"""The entry point of the program `pykubelet`, which may also be named `kubelet`. Selects the command to run.

Each command imports only what it needs. `--version` and `--help` must answer at once, so this module, `commands.py`, `flags.py`,
`flags_table.py` and `version.py` import nothing heavy at the top. Exit codes: 0 done, 1 wrong command line or configuration;
the agent has its own.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from pykubelet.app import version
from pykubelet.app.commands import find_command
from pykubelet.base.model.version import CURRENT, KUBERNETES, Release, find_release

if TYPE_CHECKING:
    from pykubelet.app.flags import CommandLine

EMULATED_VERSION = "PYKUBELET_EMULATED_VERSION"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the program with `argv` (without the program's name; None: the process's own). Returns the exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    command = find_command(arguments[0]) if arguments else None
    if command is not None:
        return command.main(arguments[1:])
    return _agent(arguments)


def _agent(arguments: Sequence[str]) -> int:
    """Run the agent, or show what its flags `--help` and `--version` ask for."""
    from pykubelet.app.flags import FlagError, parse_command_line  # other commands do without the table of flags

    try:
        line = parse_command_line([*_environment(), *arguments])
    except FlagError as error:
        return _fail(f"failed to parse kubelet flag: {error}")
    if line.words:
        return _fail(f"unknown command {line.words[0]}")
    if (line.last("help") or "false") == "true":
        from pykubelet.app import help_text

        print(help_text.render(_program()))
        return 0
    wanted = line.last("version")
    if wanted is not None and wanted != "false":
        return _show_version(wanted, find_release(line.last("emulated-version") or CURRENT) or CURRENT)
    return _run(line)


def _environment() -> list[str]:
    """The flags that environment variables give; those of the command line count more. kubeadm asks for the version without flags."""
    emulated = os.environ.get(EMULATED_VERSION)
    return [f"--emulated-version={emulated}"] if emulated else []


def _show_version(wanted: str, release: Release) -> int:
    """Answer `--version`, `--version=raw`, `--version=vX.Y.Z`."""
    if wanted == "true":
        print(version.version_line(release))
    elif wanted == "raw":
        print(version.raw_version(release))
    elif version.overridden_version(wanted):
        print(f"Kubernetes {wanted}")
    else:
        allowed = f'must be true, false, raw or "{KUBERNETES}" with a suffix'
        return _fail(f'failed to parse kubelet flag: invalid argument "{wanted}" for "--version" flag: {allowed}')
    return 0


def _run(line: CommandLine) -> int:
    gc.disable()  # collections during the imports of some hundred modules find nothing, and take a sixth of the start
    from pykubelet.app.flags import FlagError

    try:
        from pykubelet.app.load import load
        from pykubelet.config.errors import ConfigError

        settings = load(line)
        from pykubelet.net.grpc.messages import import_protobuf

        import_protobuf()
        from pykubelet.app import run

        gc.freeze()
    except FlagError as error:
        return _fail(f"failed to parse kubelet flag: {error}")
    except ConfigError as error:
        return _fail(*error.problems, *(remark.line for remark in error.remarks))
    finally:
        gc.enable()
    code = run.run(settings)
    # the interpreter needs 10 ms and more to end, with the health port closed and the process still there; all output is flushed
    os._exit(code)


def _program() -> str:
    name = os.path.basename(sys.argv[0])
    return name if name in ("pykubelet", "kubelet") else "pykubelet"


def _fail(*problems: str) -> int:
    from pykubelet.base.kit.log import Log

    Log("app").fatal(*problems)
    return 1


if __name__ == "__main__":
    sys.exit(main())
