"""The text of `--help`."""

from __future__ import annotations

from pykubelet.app.flags_table import CADVISOR, FIELDS, OWN, PROGRAM, SHORT, Flag

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
            f"  {program} pods [-o json]          each pod of the running agent and what it waits for",
            f"  {program} explain POD [-o json]   one pod's recent timeline",
            "",
            "Flags:",
            *_rows((*PROGRAM, *OWN)),
            "",
            "Flags that set a field of the configuration file (prefer --config):",
            *_rows(FIELDS),
            "",
            "Flags of cAdvisor:",
            *_rows(CADVISOR),
        ]
    )


def _rows(flags: tuple[Flag, ...]) -> list[str]:
    return [f"  {_usage(flag):<58} {flag.help}" for flag in sorted(flags)]


def _usage(flag: Flag) -> str:
    letter = next((f"-{letter}, " for letter, name in SHORT.items() if name == flag.name), "    ")
    kind = _TYPES.get(flag.kind, flag.kind)
    return f"{letter}--{flag.name}{' ' + kind if kind else ''}"
