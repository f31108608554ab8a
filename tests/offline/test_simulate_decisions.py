"""`pykubelet simulate admission` and `eviction`: what extensions change, on what a cluster prints."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pykubelet_offline.simulate import main

HEAD = "from pykubelet.extension import *\nclass Sample(Extension):\n    name, api = 'sample', '1.0'\n"
NODE = {
    "metadata": {"name": "n1", "labels": {"zone": "a"}},
    "status": {"allocatable": {"cpu": "1", "memory": "1Gi", "pods": "110"}, "capacity": {"cpu": "1"}},
}


def pod(name: str, cpu: str = "600m", **metadata: Any) -> dict[str, Any]:
    resources = {"requests": {"cpu": cpu}}
    return {
        "metadata": {"name": name, "namespace": "shop", **metadata},
        "spec": {"containers": [{"name": "c", "image": "i", "resources": resources}]},
    }


class Folder:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.put("node.json", NODE)

    def put(self, name: str, content: Any) -> str:
        path = self.path / name
        path.write_text(content if isinstance(content, str) else json.dumps(content))
        return str(path)

    def run(self, command: str, *options: str) -> int:
        return main([command, "--pods", str(self.path / "pods.json"), *options])


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path)


def test_admission_without_extensions(folder: Folder, capsys: pytest.CaptureFixture[str]) -> None:
    folder.put("pods.json", {"items": [pod("a"), pod("b"), pod("c", "100m")]})
    assert folder.run("admission", "--node", f"{folder.path}/node.json") == 0
    assert capsys.readouterr().out.splitlines() == [
        "shop/a: admitted",
        "shop/b: rejected, OutOfcpu: Node didn't have enough resource: cpu, requested: 600, used: 600, capacity: 1000",
        "shop/c: admitted",
    ]


def test_what_an_extension_changes_in_admission(folder: Folder, capsys: pytest.CaptureFixture[str]) -> None:
    body = (
        "    def admit(self, pod, node):\n        if pod.name == 'a':\n            return Reject('No', node.labels['zone'])\n"
        "        return Hold('noon') if node.time < 1_700_000_000 else None\n"
    )
    extension = folder.put("sample.py", HEAD + body)
    folder.put("pods.json", [pod("a"), pod("b")])
    options = ("--node", f"{folder.path}/node.json", "--extension", extension)
    assert folder.run("admission", *options, "--time", "2020-01-01T00:00:00Z") == 3
    full = "rejected, OutOfcpu: Node didn't have enough resource: cpu, requested: 600, used: 600, capacity: 1000"
    assert capsys.readouterr().out.splitlines() == [
        "shop/a: rejected, No: a (extension sample)   (without: admitted)",
        f"shop/b: held, noon: (extension sample)   (without: {full})",
    ]
    assert folder.run("admission", *options, "-o", "json") == 3
    first, second = json.loads(capsys.readouterr().out)["outcomes"]
    assert first["pod"] == "shop/a" and second == {"pod": "shop/b", "with": "admitted", "without": full}


def test_a_failure_is_shown(folder: Folder, capsys: pytest.CaptureFixture[str]) -> None:
    extension = folder.put("sample.py", HEAD + "    def admit(self, pod, node):\n        return 3\n")
    folder.put("pods.json", [pod("a")])
    assert folder.run("admission", "--node", f"{folder.path}/node.json", "--extension", extension) == 1
    output = capsys.readouterr()
    assert output.out == "shop/a: admitted\n"
    assert output.err == (
        "Error: an extension has failed: sample: admit: the answer must be Reject, Hold or None: it is int\n"
    )


def test_the_order_of_eviction(folder: Folder, capsys: pytest.CaptureFixture[str]) -> None:
    extension = folder.put(
        "sample.py",
        HEAD
        + "    def rank_for_eviction(self, candidates, signal):\n        return sorted(candidates, key=lambda c: c.usage.memory)\n",
    )
    folder.put("pods.json", [pod("a"), pod("b")])
    used = {"a": 200, "b": 100}
    pods = [
        {"podRef": {"namespace": "shop", "name": name}, "memory": {"workingSetBytes": amount << 20}}
        for name, amount in used.items()
    ]
    summary = folder.put("summary.json", {"node": {}, "pods": pods})
    assert folder.run("eviction", "--summary", summary) == 0
    assert capsys.readouterr().out.splitlines() == ["shop/a: 1", "shop/b: 2"]
    assert folder.run("eviction", "--summary", summary, "--extension", extension) == 3
    assert capsys.readouterr().out.splitlines() == ["shop/b: 1   (without: 2)", "shop/a: 2   (without: 1)"]


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (("--node", "{}/none.json"), "none.json: No such file or directory"),
        (("--node", "{}/pods.json"), "pods.json: "),
        (("--node", "{}/node.json", "--time", "noon"), "--time noon: "),
        (("--node", "{}/node.json", "--extension", "{}/none.py"), "none.py: no such file or directory"),
    ],
)
def test_wrong_input(
    folder: Folder, options: tuple[str, ...], problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    folder.put("pods.json", [pod("a")])
    assert folder.run("admission", *(option.format(folder.path) for option in options)) == 1
    assert problem in capsys.readouterr().err
