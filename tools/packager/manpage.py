"""The manual page pykubelet(8), from the table of flags and the parsers of the commands, in the macros of man(7). Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime

from pykubelet import __version__
from pykubelet.app.flags_table import CADVISOR, FIELDS, OWN, PROGRAM, SHORT, Flag
from pykubelet.app.help_text import value_of
from pykubelet.app.options import Option, Syntax, all_syntax
from pykubelet.base.model.version import KUBERNETES

_DESCRIPTION = """\
.B pykubelet
runs the pods of this machine through its container runtime (CRI), as the kubelet of Kubernetes {kubernetes} does. Without
.B \\-\\-kubeconfig
the node stands alone and runs the pods of the manifests in
.IR staticPodPath .
Containers keep running while the agent is stopped, restarted or upgraded.
.PP
Each flag may be given as
.BI \\-\\-flag= value
or
.BI \\-\\-flag " value" ;
flags that take no value accept
.B =true
and
.BR =false .
Flags beat the configuration file."""
_FILES = (
    ("/etc/pykubelet/config.yaml", "KubeletConfiguration of the service pykubelet.service."),
    ("/etc/pykubelet/conf.d/*.conf", "Parts that are merged over it, in the order of their names."),
    ("/etc/default/pykubelet", "More flags of that service, in PYKUBELET_ARGS."),
    ("/etc/kubernetes/manifests", "Manifests of the node's own pods."),
    ("/var/lib/kubelet", "State and the volumes of pods; another place with --root-dir."),
    ("/var/lib/kubelet/pykubelet.sock", "What pykubelet pods, explain and page ask."),
)
_EXITS = (
    ("0", "Ended by a signal, or the command has answered."),
    ("1", "The command line, the configuration or an input cannot be used, or the agent cannot go on."),
    ("2", "The command line of a command is wrong."),
    ("3", "replay: a step had another result; simulate: a pod was rejected."),
)


def render(epoch_s: int) -> str:
    """The page. `epoch_s`: the date in its footer, in seconds since 1970."""
    date = datetime.fromtimestamp(epoch_s, UTC).date().isoformat()
    lines = [
        f'.TH PYKUBELET 8 "{date}" "pykubelet {__version__}" "Kubernetes"',
        ".SH NAME",
        r"pykubelet, kubelet \- Kubernetes node agent",
        ".SH SYNOPSIS",
        ".B pykubelet",
        r".RI [ flags ]",
    ]
    commands = all_syntax()
    for command in commands:
        lines += [".br", f".B pykubelet {_text(' '.join(command.words))}", _usage(command)]
    lines += [".SH DESCRIPTION", _DESCRIPTION.format(kubernetes=KUBERNETES.removeprefix("v").rpartition(".")[0])]
    lines += [".SH COMMANDS"]
    for command in commands:
        lines += [f".SS pykubelet {_text(' '.join(command.words))}", _text(command.description)]
        lines += [line for item in (*command.arguments, *command.options) for line in _item(item)]
    for title, flags in (
        ("FLAGS", (*PROGRAM, *OWN)),
        ("FLAGS THAT SET A FIELD OF THE CONFIGURATION FILE", FIELDS),
        ("FLAGS OF CADVISOR, OF KUBERNETES 1.36", CADVISOR),
    ):
        lines += [f".SH {title}", *_flags(flags)]
    lines += [".SH FILES", *_rows(_FILES, "I"), ".SH EXIT STATUS", *_rows(_EXITS, "B")]
    lines += [".SH SEE ALSO", ".BR containerd (8),", ".BR systemd (1)", ".PP", r"/usr/share/doc/pykubelet/"]
    return "\n".join(lines) + "\n"


def render_link() -> str:
    """kubelet(8), which is the same page."""
    return ".so man8/pykubelet.8\n"


def _usage(syntax: Syntax) -> str:
    words = [option.value for option in syntax.arguments]
    if len(syntax.options) > 1:  # more than --help
        words.append("[options]")
    return f".I {_text(' '.join(words))}" if words else r"\&"


def _item(option: Option) -> Iterator[str]:
    names = ", ".join(rf"\fB{_text(name)}\fR" for name in option.names)
    value = rf"\fI{_text(option.value)}\fR" if option.value else ""
    yield from (".TP", f"{names} {value}".strip(), _text(option.help))


def _flags(flags: Iterable[Flag]) -> Iterator[str]:
    for flag in sorted(flags):
        letters = tuple(f"-{letter}" for letter, name in SHORT.items() if name == flag.name)
        text = f"{flag.help[:1].upper()}{flag.help[1:]}." if flag.help else ""
        yield from _item(Option((*letters, f"--{flag.name}"), value_of(flag), (), text))


def _rows(rows: Iterable[tuple[str, str]], font: str) -> Iterator[str]:
    for name, text in rows:
        yield from (".TP", f".{font} {_text(name)}", _text(text))


def _text(text: str) -> str:
    """Plain text: hyphens that can be copied, and no line that begins a macro."""
    escaped = text.replace("\\", r"\e").replace("-", r"\-")
    return rf"\&{escaped}" if escaped.startswith((".", "'")) else escaped
