"""The completion scripts, asked by real shells: a word and what it may become."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from pykubelet.app.commands import all_commands
from pykubelet.app.completion import SHELLS, render_bash, render_fish, render_zsh
from pykubelet.app.flags_table import ALL
from pykubelet.app.options import all_syntax

# An agent's answer, for the names of pods.
AGENT = 'pykubelet() { printf "NAMESPACE NAME READY\\nshop web-0 1/1\\nshop web-1 1/1\\n"; }\n'


def ask_bash(*words: str) -> list[str]:
    """The completions of the last of `words`."""
    script = f"{AGENT}{render_bash()}COMP_WORDS=(\"$@\"); COMP_CWORD=$(($# - 1)); _pykubelet; printf '%s\\n' ${{COMPREPLY[@]}}"
    done = subprocess.run(
        ["bash", "-c", script, "bash", *words], capture_output=True, text=True, timeout=30, check=False
    )
    assert done.stderr == ""
    return done.stdout.split()


def test_bash_completes_commands_and_flags() -> None:
    assert ask_bash("pykubelet", "") == list(all_commands())
    assert ask_bash("pykubelet", "exp") == ["explain"]
    assert ask_bash("pykubelet", "--config") == ["--config", "--config-dir"]
    assert set(ask_bash("pykubelet", "--")) == {f"--{name}" for name in ALL}
    assert ask_bash("kubelet", "--root-dir", "/", "--kubeconf") == ["--kubeconfig"]


def test_bash_completes_what_a_command_takes() -> None:
    assert ask_bash("pykubelet", "pods", "-o", "") == ["table", "json"]
    assert ask_bash("pykubelet", "simulate", "placement", "--output", "j") == ["json"]
    assert ask_bash("pykubelet", "simulate", "p") == ["placement"]
    assert ask_bash("pykubelet", "csi-local", "--max") == ["--max-volumes", "--max-ephemeral-size"]
    assert ask_bash("pykubelet", "csi-local", "ex") == ["expand"]
    assert ask_bash("pykubelet", "csi-local", "create", "--backing", "i") == ["image"]
    assert ask_bash("pykubelet", "completion", "z") == ["zsh"]
    assert ask_bash("pykubelet", "pods", "--root-dir", "/va") == []  # then bash completes names of files


def test_bash_completes_names_of_pods() -> None:
    assert ask_bash("pykubelet", "explain", "shop/") == ["shop/web-0", "shop/web-1"]
    assert ask_bash("pykubelet", "explain", "no") == ["node"]
    assert ask_bash("pykubelet", "explain", "--rec") == ["--recording"]


@pytest.mark.skipif(shutil.which("fish") is None, reason="needs fish")
def test_fish_completes_the_same(tmp_path: Path) -> None:
    def ask(line: str) -> set[str]:
        script = f"source {tmp_path}/it.fish; complete -C '{line}'"
        done = subprocess.run(["fish", "-c", script], capture_output=True, text=True, timeout=60, check=False)
        assert done.stderr == ""
        return {row.split("\t")[0] for row in done.stdout.splitlines()}

    (tmp_path / "it.fish").write_text(render_fish())
    assert set(all_commands()) <= ask("pykubelet ")
    assert ask("pykubelet --config") == {"--config", "--config-dir"}
    assert ask("kubelet pods -o ") == {"table", "json"}
    assert ask("pykubelet simulate p") == {"placement"}


@pytest.mark.skipif(shutil.which("zsh") is None, reason="needs zsh")
def test_zsh_reads_its_script() -> None:
    done = subprocess.run(["zsh", "-n"], input=render_zsh(), capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("shell", SHELLS)
def test_the_command_prints_every_flag_and_option(shell: str) -> None:
    argv = [sys.executable, "-m", "pykubelet.app.cli", "completion", shell]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, SHELLS[shell]())
    names = {f"--{name}" for name in ALL} | {
        name for syntax in all_syntax() for option in syntax.options for name in option.names
    }
    shown = {name: f"-l {name[2:]}" if name.startswith("--") else f"-s {name[1:]}" for name in names}
    missing = [name for name in names if (shown[name] if shell == "fish" else name) not in done.stdout]
    assert missing == []


def test_every_command_has_words_for_what_it_does() -> None:
    texts = {syntax.words[0]: syntax.description for syntax in all_syntax()}
    assert set(texts) == set(all_commands())
    assert all(texts.values()) and all(command.help for command in all_commands().values())
