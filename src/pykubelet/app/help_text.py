"""The text of `--help`."""

from __future__ import annotations

from pykubelet.app.commands import all_commands
from pykubelet.app.flags_table import CADVISOR, FIELDS, OWN, PROGRAM, SHORT, Flag
from pykubelet.base.kit.commands import Command

_TYPES = {
    "bool": "",
    "version": "",
    "str": "string",
    "map": "key=value,...",
    "map-whole": "key=value",
    "map<": "signal<value,...",
    "bools": "key=bool,...",
    "labels": "key=value,...",
    "multimap": "key:value,...",
    "strings": "a,b,...",
    "taints": "key=value:effect,...",
    "vmodule": "pattern=N,...",
    "verbosity": "N",
    "int32": "N",
    "int64": "N",
    "node-ip": "ip,...",
    "reserved-memory": "node:type=quantity,...",
}


def render(program: str) -> str:
    """The text of `--help`. `program`: the name of the program."""
    return "\n".join(
        [
            "The Kubernetes node agent: runs pods from manifests on a container runtime.",
            "",
            "Usage:",
            f"  {program} [flags]",
            *(_command(program, command) for command in all_commands().values()),
            "",
            "Flags:",
            *_rows((*PROGRAM, *OWN)),
            "",
            "Flags that set a field of the configuration file (prefer --config):",
            *_rows(FIELDS),
            "",
            "Flags of cAdvisor, with --emulated-version 1.36 only:",
            *_rows(CADVISOR),
        ]
    )


def _command(program: str, command: Command) -> str:
    usage = f"{program} {command.name} {command.arguments}".rstrip()
    return f"  {usage:<37} {command.help}"


def _rows(flags: tuple[Flag, ...]) -> list[str]:
    return [f"  {_usage(flag):<58} {flag.help}" for flag in sorted(flags)]


def _usage(flag: Flag) -> str:
    """The flag with its letter and the kind of its value, as a column of the list of flags."""
    letter = next((f"-{letter}, " for letter, name in SHORT.items() if name == flag.name), "    ")
    kind = value_of(flag)
    return f"{letter}--{flag.name}{' ' + kind if kind else ''}"


def value_of(flag: Flag) -> str:
    """What the flag takes, in a word; empty if it needs no value."""
    return _TYPES.get(flag.kind, flag.kind)
