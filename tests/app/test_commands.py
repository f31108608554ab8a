"""The commands: those of the agent, and those of the programs beside it, which the agent finds by entry points."""

from __future__ import annotations

import subprocess
import sys

import pytest

from pykubelet.app import commands
from pykubelet.app.commands import COMMANDS, all_commands, find_command


def test_every_command_is_found_by_its_name() -> None:
    found = all_commands()
    assert {name: find_command(name) for name in found} == found
    assert [command.name for command in found.values()] == list(found)
    assert list(found)[: len(COMMANDS)] == list(COMMANDS)
    assert {"csi-local", "replay", "simulate"} <= found.keys() - COMMANDS.keys()


@pytest.mark.parametrize("name", ["run", "", "--config", "-v", "csi_local"])
def test_other_words_are_no_commands(name: str) -> None:
    assert find_command(name) is None


def test_sources_that_are_not_installed_have_the_commands_of_the_agent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commands, "DISTRIBUTION", "pykubelet-that-is-not-installed")
    assert all_commands() == COMMANDS
    assert find_command("csi-local") is None


@pytest.mark.parametrize("argv", [["--version"], ["pods", "--root-dir=/nowhere"], ["--nope"]])
def test_the_agent_and_its_own_commands_look_for_no_programs_beside_it(argv: list[str]) -> None:
    code = (
        f"import sys; from pykubelet.app.cli import main; main({argv!r});"
        "found = [name for name in sys.modules if name.startswith(('pykubelet_', 'importlib.metadata'))];"
        "sys.exit(str(found) if found else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 0, done.stderr


def test_a_program_beside_the_agent_runs_without_what_finds_commands() -> None:
    """`importlib.metadata` needs 2 MiB, which a program that runs for long would keep."""
    code = (
        "import sys; from pykubelet.app.commands import find_command; assert find_command('cri-docker');"
        "found = [name for name in sys.modules if name.startswith(('importlib.metadata', 'email', 'zipfile'))];"
        "sys.exit(str(found) if found else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 0, done.stderr
