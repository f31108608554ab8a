"""`pykubelet completion bash|zsh|fish`: print the script by which a shell completes the program's commands and flags.

Made from the table of flags and from the parsers of the commands. Names of pods are asked of the running agent, which only root
may do. Exit codes: 0 printed, 2 wrong command line.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence

from pykubelet.app.commands import all_commands
from pykubelet.app.flags_table import ALL, SHORT, Flag
from pykubelet.app.help_text import value_of
from pykubelet.app.options import Option, Syntax, all_syntax

PROGRAMS = ("pykubelet", "kubelet")
POD = "POD"
#: Prints the pods of the running agent as NAMESPACE/NAME, and the word for the node itself.
_POD_NAMES = "pykubelet pods 2>/dev/null | awk 'NR > 1 {print $1 \"/\" $2}'; echo node"
_FILES = ("file", "config", "kubeconfig")
_FOLDERS = ("dir", "path")


def main(argv: Sequence[str]) -> int:
    """Run the command; returns its exit code."""
    print(SHELLS[build_parser().parse_args(argv).shell](), end="")
    return 0


def build_parser() -> argparse.ArgumentParser:
    """The options of the command line."""
    parser = argparse.ArgumentParser(
        prog="pykubelet completion",
        description="Print the script by which a shell completes commands and flags.",
        allow_abbrev=False,
    )
    parser.add_argument("shell", choices=tuple(SHELLS), help="the shell that is to run the script")
    return parser


def render_bash() -> str:
    """For bash: source it, or install it where bash-completion looks for it."""
    lines = [
        "# bash completion for pykubelet, printed by `pykubelet completion bash`",
        "_pykubelet() {",
        "    local word=${COMP_WORDS[COMP_CWORD]} previous=${COMP_WORDS[COMP_CWORD-1]} words=",
        "    COMPREPLY=()",
        '    case "${COMP_WORDS[1]} $previous" in',
        *(f"    {pattern}) words={_quoted(' '.join(option.choices))} ;;" for pattern, option in _bash_choices()),
        "    *)",
        '        case "${COMP_WORDS[1]}" in',
    ]
    for syntax in _commands():
        words, *rest = syntax.words
        lines += [f"        {words})"]
        lines += [
            f"            words={_quoted(' '.join((*rest, *_names(syntax.options), *_choices(syntax.arguments))))}"
        ]
        if any(argument.value == POD for argument in syntax.arguments):
            lines += [f'            [[ $word == -* ]] || words="$words $({_POD_NAMES})"']
        lines += ["            ;;"]
    flags = " ".join(name for flag in ALL.values() for name in _flag_names(flag))
    lines += [
        f'        *) [[ $word == -* ]] && words={_quoted(flags)} || [[ $COMP_CWORD -gt 1 ]] || words="{" ".join(all_commands())}" ;;',
        "        esac",
        "        ;;",
        "    esac",
        '    COMPREPLY=($(compgen -W "$words" -- "$word"))',
        "}",
        # without a word of ours, a name of a file
        f"complete -o bashdefault -o default -F _pykubelet {' '.join(PROGRAMS)}",
    ]
    return "\n".join(lines) + "\n"


def render_zsh() -> str:
    """For zsh: a file `_pykubelet` in a folder of its `fpath`."""
    lines = [
        f"#compdef {' '.join(PROGRAMS)}",
        "# zsh completion for pykubelet, printed by `pykubelet completion zsh`",
        f"_pykubelet_pods() {{ compadd -- $({_POD_NAMES}) }}",
        "_pykubelet() {",
        "    local -a commands=(",
        *(f"        {_quoted(f'{command.name}:{command.help}')}" for command in all_commands().values()),
        "    )",
        "    if (( CURRENT == 2 )) && [[ $words[2] != -* ]]; then",
        "        _describe -t commands command commands",
        "        return",
        "    fi",
        "    case $words[2] in",
    ]
    for syntax in _commands():
        more = [_quoted(f"1: :({' '.join(syntax.words[1:])})")] if len(syntax.words) > 1 else []
        start = len(more) + 1
        more += [
            _quoted(f"{number}:{_zsh(argument.value)}:{_zsh_values(argument)}")
            for number, argument in enumerate(syntax.arguments, start)
        ]
        more += [row for option in syntax.options for row in _zsh_rows(option)]
        lines += [f"    {syntax.words[0]})", "        shift words; (( CURRENT-- ))"]
        lines += [f"        _arguments {' '.join(more)}", "        ;;"]
    lines += ["    *)", "        _arguments \\"]
    lines += [f"            {row} \\" for flag in ALL.values() for row in _zsh_rows(_as_option(flag))]
    lines += ["            '*: :'", "        ;;", "    esac", "}", '_pykubelet "$@"']
    return "\n".join(lines) + "\n"


def render_fish() -> str:
    """For fish: a file `pykubelet.fish` in a folder of completions."""
    lines = ["# fish completion for pykubelet, printed by `pykubelet completion fish`"]
    first = "__fish_use_subcommand"
    for command in all_commands().values():
        lines += [f"complete -c pykubelet -f -n {first} -a {command.name} -d {_fish(command.help)}"]
    for flag in ALL.values():
        lines += [f"complete -c pykubelet -n {first} {_fish_option(_as_option(flag))}"]
    for syntax in _commands():
        when = f"-n '__fish_seen_subcommand_from {syntax.words[0]}'"
        lines += [f"complete -c pykubelet -f {when} -a {word}" for word in syntax.words[1:]]
        lines += [f"complete -c pykubelet {when} {_fish_option(option)}" for option in syntax.options]
        for argument in syntax.arguments:
            if argument.value == POD:
                lines += [f"complete -c pykubelet -f {when} -a {_fish(f'({_POD_NAMES})')}"]
            elif argument.choices:
                lines += [f"complete -c pykubelet -f {when} -a {_fish(' '.join(argument.choices))}"]
    lines += [f"complete -c {program} -w pykubelet" for program in PROGRAMS[1:]]
    return "\n".join(lines) + "\n"


SHELLS: dict[str, Callable[[], str]] = {"bash": render_bash, "zsh": render_zsh, "fish": render_fish}


def _commands() -> Iterator[Syntax]:
    """Each command once, with the names of its own commands as further words, and all that these take."""
    for name in all_commands():
        found = [syntax for syntax in all_syntax() if syntax.words[0] == name]
        yield Syntax(
            (name, *(word for syntax in found for word in syntax.words[1:])),
            "",
            tuple({option.names: option for syntax in found for option in syntax.options}.values()),
            tuple({argument.value: argument for syntax in found for argument in syntax.arguments}.values()),
        )


def _as_option(flag: Flag) -> Option:
    return Option(_flag_names(flag), value_of(flag), (), flag.help)


def _flag_names(flag: Flag) -> tuple[str, ...]:
    return (*(f"-{letter}" for letter, name in SHORT.items() if name == flag.name), f"--{flag.name}")


def _names(options: Sequence[Option]) -> tuple[str, ...]:
    return tuple(name for option in options for name in option.names)


def _choices(options: Sequence[Option]) -> tuple[str, ...]:
    return tuple(choice for option in options for choice in option.choices)


def _bash_choices() -> Iterator[tuple[str, Option]]:
    """Patterns of a command and an option before the word, and the option."""
    for syntax in _commands():
        for option in syntax.options:
            if option.choices:
                yield " | ".join(_quoted(f"{syntax.words[0]} {name}") for name in option.names), option


def _quoted(text: str) -> str:
    """One word for bash and zsh."""
    return "'" + text.replace("'", "'\\''") + "'"


def _zsh(text: str) -> str:
    """Text inside a specification of `_arguments`."""
    return "".join(f"\\{character}" if character in "[]:\\" else character for character in text)


def _zsh_values(option: Option) -> str:
    """How the value is completed."""
    if option.choices:
        return f"({' '.join(option.choices)})"
    if option.value == POD:
        return "_pykubelet_pods"
    name = (option.names or (option.value.lower(),))[-1]
    if name.endswith(_FOLDERS):
        return "_files -/"
    return "_files" if name.endswith(_FILES) else " "


def _zsh_rows(option: Option) -> Iterator[str]:
    """One specification for each name; a long flag takes its value after `=` too."""
    value = f":{_zsh(option.value)}:{_zsh_values(option)}" if option.value else ""
    for name in option.names:
        shown = f"{name}=" if value and name.startswith("--") else name
        yield _quoted(f"{shown}[{_zsh(option.help)}]{value}")


def _fish(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def _fish_option(option: Option) -> str:
    words = [f"-l {name[2:]}" if name.startswith("--") else f"-s {name[1:]}" for name in option.names]
    if option.choices:
        words.append(f"-x -a {_fish(' '.join(option.choices))}")
    elif option.value:
        words.append("-r")
    return " ".join([*words, f"-d {_fish(option.help)}"])
