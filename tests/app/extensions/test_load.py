"""Which extensions are loaded, and why others are refused."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from pykubelet.app.extensions.load import load_extensions
from pykubelet.config.errors import ConfigError
from pykubelet.edges.plugins.extension_process import ExtensionProgram

HEAD = "from dataclasses import dataclass\nfrom pykubelet.extension import *\n"
PLAIN = (
    HEAD
    + "class Cheap(Extension):\n    name, api = 'cheap', '1.0'\n    def admit(self, pod, node):\n        return None\n"
)
WITH_SETTINGS = (
    HEAD
    + "@dataclass(frozen=True)\nclass S:\n    most: int = 3\n"
    + "class Cheap(Extension):\n    name, api, version, Settings = 'cheap', '1.0', '7', S\n"
    + "    def rank_for_eviction(self, candidates, signal):\n        return None\n"
)


def write(folder: Path, text: str, name: str = "cheap.py", mode: int = 0o644) -> str:
    path = folder / name
    path.write_text(text)
    path.chmod(mode)
    return str(path)


def refusal(*given: str) -> str:
    with pytest.raises(ConfigError) as error:
        load_extensions(given)
    return str(error.value)


def test_a_file_is_loaded_with_its_points(tmp_path: Path) -> None:
    path = write(tmp_path, PLAIN)
    (found,) = load_extensions([path]).extensions
    assert (found.extension.name, found.file, found.points) == ("cheap", path, ("admit",))
    assert found.extension.settings is None


def test_settings_are_read_into_its_class(tmp_path: Path) -> None:
    path, settings = write(tmp_path, WITH_SETTINGS), write(tmp_path, "most: 5\n", "s.yaml")
    (found,) = load_extensions([f"{path}={settings}"]).extensions
    assert found.extension.settings.most == 5
    (found,) = load_extensions([path]).extensions
    assert found.extension.settings.most == 3


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("mots: 5", "unknown field mots (did you mean most?)"),
        ("most: many", "Expected `int`, got `str` - at `$.most`"),
        ("- most", "it must be a mapping of names to settings"),
        ("most: [", "s.yaml: "),
    ],
)
def test_wrong_settings_are_refused(tmp_path: Path, text: str, reason: str) -> None:
    path, settings = write(tmp_path, WITH_SETTINGS), write(tmp_path, text, "s.yaml")
    refused = refusal(f"{path}={settings}")
    assert refused.startswith(f"--extension {path}: {settings}: ") and reason in refused


def test_settings_for_an_extension_without_any_are_refused(tmp_path: Path) -> None:
    path, settings = write(tmp_path, PLAIN), write(tmp_path, "most: 5", "s.yaml")
    assert "it takes no settings: leave out =" in refusal(f"{path}={settings}")


CLASS = HEAD + "class Cheap(Extension):\n    name, api = 'cheap', '1.0'\n"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("1/0", "it cannot be imported: ZeroDivisionError: division by zero"),
        ("raise SystemExit(3)", "it cannot be imported: SystemExit: 3"),
        ("x = 1", "it must define one class of pykubelet.extension.Extension: it has 0"),
        (PLAIN + PLAIN.replace("Cheap", "Other"), "it has 2"),
        (PLAIN.replace("    def", "    annotation = 'a b'\n    def"), "`annotation` must be a key of an annotation"),
        (PLAIN.replace("'cheap'", "'Not Cheap'"), "`name` must be lower-case letters, digits and dashes"),
        (PLAIN.replace("'1.0'", "'2.0'"), "it is written for version 2.0 of the interface, and this agent has 1."),
        (PLAIN.replace("'1.0'", "'1.999'"), "it is written for version 1.999 of the interface"),
        (PLAIN.replace("'1.0'", "None"), "`api` must be the version that it is written for"),
        (CLASS, "it defines no point: one of admit, rank_for_eviction"),
        (CLASS + "    async def admit(self, pod, node):\n        return None\n", "`admit` must be a plain method"),
        (CLASS + "    def admit(self, pod, node):\n        yield None\n", "`admit` must be a plain method"),
        (CLASS + "    def rank_for_evictions(self):\n        return None\n", "(did you mean `rank_for_eviction`?)"),
        (
            PLAIN + "    def __init__(self, settings):\n        raise ValueError('no')\n",
            "it cannot be made: ValueError: no",
        ),
    ],
)
def test_a_wrong_file_is_refused(tmp_path: Path, text: str, reason: str) -> None:
    path = write(tmp_path, text)
    refused = refusal(path)
    assert refused.startswith(f"--extension {path}: ") and reason in refused


def test_names_that_are_not_there(tmp_path: Path) -> None:
    assert "no installed package has an extension of this name: give a file as ./NAME.py" in refusal("carbon")
    assert "no such file or directory" in refusal(f"{tmp_path}/none.py")
    assert "is not a file" in refusal(f"{tmp_path}/")
    text = write(tmp_path, PLAIN, "cheap.txt")
    assert "is neither executable nor a Python module" in refusal(text)


def test_a_name_is_loaded_once(tmp_path: Path) -> None:
    first, second = write(tmp_path, PLAIN), write(tmp_path, PLAIN, "again.py")
    assert refusal(first, second).endswith("an extension named cheap is loaded already: name each one once")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
@pytest.mark.parametrize("part", ["file", "folder", "settings"])
@pytest.mark.parametrize("fault", ["owner", "mode"])
def test_nothing_is_loaded_that_another_user_can_have_written(tmp_path: Path, part: str, fault: str) -> None:
    folder = tmp_path / "extensions"
    folder.mkdir(mode=0o755)
    path, settings = write(folder, "raise AssertionError('it ran')"), write(tmp_path, "most: 5", "s.yaml")
    wrong = {"file": path, "folder": str(folder), "settings": settings}[part]
    if fault == "owner":
        os.chown(wrong, 1000, 1000)
        assert f"{wrong} belongs to user 1000: it must belong to root" in refusal(f"{path}={settings}")
    else:
        os.chmod(wrong, 0o777)
        assert f"other users can write to {wrong}" in refusal(f"{path}={settings}")


def test_a_program_is_a_process_of_its_own(tmp_path: Path) -> None:
    path, settings = write(tmp_path, "#!/bin/sh\n", "queue.sh", 0o755), write(tmp_path, "most: 5", "s.yaml")
    loaded = load_extensions([f"{path}={settings}"])
    assert loaded.extensions == () and loaded.programs == (ExtensionProgram("queue", path, {"most": 5}),)


def test_the_agent_imports_nothing_of_it_without_extensions() -> None:
    script = (
        "import sys, pykubelet.app.cli, pykubelet.app.run, pykubelet.app.wiring_cluster\n"
        "from pykubelet.app.wiring import LATE\n[__import__(name) for name in LATE]\n"
        "print([name for name in sys.modules if name.startswith(('pykubelet.extension', 'pykubelet.app.extensions'))])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_an_extension_of_an_installed_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "cheap_package.py").write_text(PLAIN)
    about = tmp_path / "cheap_package-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: cheap-package\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(
        "[pykubelet.extensions]\ncheap = cheap_package:Cheap\nwrong = cheap_package:Node\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    (found,) = load_extensions(["cheap"]).extensions
    assert (found.extension.name, found.points) == ("cheap", ("admit",))
    assert "no installed package has an extension of this name (did you mean cheap?)" in refusal("cheep")
    assert "its entry point cheap_package:Node is no class of pykubelet.extension.Extension" in refusal("wrong")
    sys.modules.pop("cheap_package")
    (tmp_path / "cheap_package.py").chmod(0o666)
    assert f"other users can write to {tmp_path}/cheap_package.py" in refusal("cheap")
