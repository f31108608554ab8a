import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

LAB = Path(__file__).with_name(os.environ.get("LAB", "exercise.py"))
POD = {"metadata": {"namespace": "shop", "name": "web"}}


def load(folder: Path) -> Any:
    spec = importlib.util.spec_from_file_location("lab5", LAB)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    process = module.Heartbeat()
    process.settings = {"folder": str(folder)}
    return process


def beat(folder: Path, name: str = "worker", ago_s: float = 0.0) -> None:
    path = folder / "shop" / "web" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    at = path.stat().st_mtime - ago_s
    os.utime(path, (at, at))


def probe(folder: Path, *args: str) -> tuple[bool, str]:
    success, message = load(folder).probe(POD, {"name": "main"}, list(args))
    return success, message


def test_a_new_heartbeat(tmp_path: Path) -> None:
    beat(tmp_path, ago_s=5)
    assert probe(tmp_path, "worker", "30")[0] is True


def test_an_old_heartbeat(tmp_path: Path) -> None:
    beat(tmp_path, ago_s=120)
    success, message = probe(tmp_path, "worker", "30")
    assert success is False and "120" in message


def test_no_heartbeat_yet(tmp_path: Path) -> None:
    success, message = probe(tmp_path, "worker", "30")
    assert success is False and "worker" in message


def test_a_heartbeat_in_the_future(tmp_path: Path) -> None:
    beat(tmp_path, ago_s=-1000)
    assert probe(tmp_path, "worker", "30")[0] is True


@pytest.mark.parametrize("args", [(), ("worker",), ("worker", "soon"), ("worker", "30", "40")])
def test_wrong_arguments(tmp_path: Path, args: tuple[str, ...]) -> None:
    beat(tmp_path)
    with pytest.raises(ValueError):
        probe(tmp_path, *args)


@pytest.mark.parametrize("name", ["../other/worker", "..", "/etc/passwd", ""])
def test_no_path_leads_out(tmp_path: Path, name: str) -> None:
    beat(tmp_path)
    (tmp_path / "shop" / "other").mkdir()
    (tmp_path / "shop" / "other" / "worker").touch()
    with pytest.raises(ValueError):
        probe(tmp_path, name, "30")


def test_it_speaks_the_protocol(tmp_path: Path) -> None:
    beat(tmp_path)
    hello = {"hello": {"version": "1.0", "node": "node-1", "settings": {"folder": str(tmp_path)}}}
    call = {"id": 1, "call": "probe", "pod": POD, "container": {"name": "main"}, "args": ["worker", "30"]}
    wrong = call | {"id": 2, "args": []}
    with subprocess.Popen([sys.executable, str(LAB)], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None and process.stdout is not None
        for message in (hello, call, wrong):
            process.stdin.write(json.dumps(message).encode() + b"\n")
        process.stdin.flush()
        assert json.loads(process.stdout.readline())["offers"] == ["probe"]
        answers = {answer["id"]: answer for answer in (json.loads(process.stdout.readline()) for _ in range(2))}
        process.stdin.close()
        process.wait(10)
    assert answers[1]["result"]["success"] is True
    assert "error" in answers[2]
