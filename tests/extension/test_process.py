"""The library for extensions that are processes, and the samples, by the lines that the agent sends."""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pykubelet.edges.plugins.extension_messages import HelloAnswer, parse_line
from pykubelet.extension.process import VERSION

SAMPLES = Path(__file__).parents[2] / "examples" / "extensions"
Json = dict[str, Any]
POD = {"metadata": {"namespace": "default", "name": "web", "uid": "u1"}}
MIXED = """
import sys, threading
from pykubelet.extension.process import Process, Wait, serve

class Mixed(Process):
    annotation = "example.com/a"
    asked = 0
    def start(self):
        print("a line that is no message", self.node, self.settings)
        self.both = threading.Barrier(2)
    def prepare(self, pod):
        self.asked += 1
        return Wait("not yet", 5) if self.asked == 1 else None
    def probe(self, pod, container, args):
        if args[0] == "fail":
            raise LookupError("no such queue")
        self.both.wait(30)  # two calls run at a time
        return args[0] == "good", "as asked"
    def on_transition(self, transition):
        raise ValueError(transition["stage"])
    def stop(self):
        print("stopped")
serve(Mixed())
"""


class Started:
    """A program with its pipes."""

    def __init__(self, program: Path, settings: Json) -> None:
        pipe = subprocess.PIPE
        self.process = subprocess.Popen([sys.executable, str(program)], stdin=pipe, stdout=pipe, stderr=pipe, text=True)
        self.put({"hello": {"version": "1.0", "node": "node-1", "settings": settings}})
        self.hello = self.next()

    def put(self, message: Json) -> None:
        assert self.process.stdin is not None
        print(json.dumps(message), file=self.process.stdin, flush=True)

    def next(self) -> Json:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        parse_line(line.encode())  # the agent takes it
        found: Json = json.loads(line)
        return found

    def call(self, number: int, call: str, **fields: Any) -> Json:
        self.put({"id": number, "call": call, **fields})
        return self.next()

    def end(self) -> tuple[int, str]:
        """End its input: the exit code, and what it has printed to standard error."""
        _, errors = self.process.communicate(timeout=30)
        return self.process.returncode, errors


Start = Callable[..., Started]


@pytest.fixture
def start() -> Iterator[Start]:
    made: list[Started] = []

    def begin(program: Path, **settings: Any) -> Started:
        made.append(Started(program, settings))
        return made[-1]

    yield begin
    for started in made:
        started.process.kill()
        started.process.communicate()


@pytest.fixture
def mixed(start: Start, tmp_path: Path) -> Started:
    (tmp_path / "mixed.py").write_text(MIXED)
    return start(tmp_path / "mixed.py", a=1)


def test_what_a_class_defines_is_offered(mixed: Started) -> None:
    assert mixed.hello == {"version": VERSION, "offers": ["need", "probe", "observer"], "annotation": "example.com/a"}
    assert isinstance(parse_line(json.dumps(mixed.hello).encode()), HelloAnswer)


def test_calls_have_their_results_and_what_is_printed_is_no_message(mixed: Started) -> None:
    assert mixed.call(1, "prepare", pod=POD) == {"id": 1, "result": {"wait": "not yet", "again_s": 5}}
    assert mixed.call(2, "prepare", pod=POD) == {"id": 2, "result": {"ready": True}}
    assert mixed.call(3, "release", pod=POD) == {"id": 3, "result": {}}
    code, errors = mixed.end()
    assert code == 0
    assert errors.splitlines() == ["a line that is no message node-1 {'a': 1}", "stopped"]


def test_calls_run_side_by_side(mixed: Started) -> None:
    for number, word in ((1, "good"), (2, "bad")):
        mixed.put({"id": number, "call": "probe", "pod": POD, "container": {}, "args": [word]})
    answers = sorted((mixed.next(), mixed.next()), key=lambda answer: answer["id"])
    assert [answer["result"]["success"] for answer in answers] == [True, False]


def test_an_exception_is_the_error_of_its_call_alone(mixed: Started) -> None:
    mixed.put({"transition": {"pod": POD, "stage": "syncing"}})
    answer = mixed.call(1, "probe", pod=POD, container={}, args=["fail"])
    assert answer == {"id": 1, "error": "LookupError: no such queue"}
    assert mixed.call(2, "dance") == {"id": 2, "error": "ValueError: this program does not know the call dance"}
    code, errors = mixed.end()
    assert code == 0
    assert "ValueError: syncing" in errors and "Traceback" in errors


def test_a_source_that_fails_ends_the_program(start: Start, tmp_path: Path) -> None:
    """Its set of pods would grow old unnoticed."""
    (tmp_path / "bad.py").write_text(
        "from pykubelet.extension.process import Process, serve\n"
        "class Bad(Process):\n    def watch(self):\n        raise OSError('gone')\nserve(Bad())\n"
    )
    program = start(tmp_path / "bad.py")
    assert program.hello["offers"] == ["source"]
    assert program.process.wait(30) == 1


@pytest.mark.parametrize("path", sorted(SAMPLES.glob("*.py")), ids=lambda path: path.stem)
def test_a_sample_has_at_most_a_hundred_lines_and_can_be_executed(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= 100
    if path.read_text().startswith("#!"):
        assert path.stat().st_mode & 0o111


def test_the_library_needs_only_the_standard_library() -> None:
    """And so does the package that it is in: memory and start of each program depend on it."""
    code = (
        f"import sys; sys.path.insert(0, {str(SAMPLES.parents[1] / 'src')!r})\n"
        "import pykubelet.extension.process\n"
        "print(*{name.partition('.')[0] for name in sys.modules} - sys.stdlib_module_names)"
    )
    done = subprocess.run([sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, check=True)
    assert set(done.stdout.split()) <= {"__main__", "pykubelet"}


def test_the_message_socket_keeps_its_pods(start: Start, tmp_path: Path) -> None:
    state = tmp_path / "pods.json"
    state.write_text(json.dumps({"web": POD}))
    program = start(SAMPLES / "message-socket.py", socket=str(tmp_path / "s"), state=str(state))
    assert program.hello["offers"] == ["source"]
    assert program.next() == {"pods": [POD]}


def test_the_warm_cache_waits_and_refuses_names_that_lead_elsewhere(start: Start, tmp_path: Path) -> None:
    (tmp_path / "from" / "base").mkdir(parents=True)
    program = start(SAMPLES / "warm-cache.py", source=str(tmp_path / "from"), cache=str(tmp_path / "to"), keep=0)
    pod: Json = {"metadata": {**POD["metadata"], "annotations": {program.hello["annotation"]: "base"}}}
    number = 1
    while "wait" in (answer := program.call(number, "prepare", pod=pod))["result"]:
        number += 1
    assert answer["result"] == {"ready": True}
    assert (tmp_path / "to" / "base").is_dir()
    assert program.call(100, "release", pod=POD) == {"id": 100, "result": {}}
    assert not (tmp_path / "to" / "base").exists()
    for name in ("../from", "", ".hidden", "/etc"):
        pod["metadata"]["annotations"][program.hello["annotation"]] = name
        assert "is no name of a data set" in program.call(101, "prepare", pod=pod)["error"]


def test_the_probe_of_a_queue(start: Start, tmp_path: Path) -> None:
    (tmp_path / "orders").mkdir()
    program = start(SAMPLES / "queue-depth.py", queues=str(tmp_path))
    answer = program.call(1, "probe", pod=POD, container={}, args=["orders", "0"])
    assert answer["result"] == {"success": True, "message": "0 messages wait in orders; 0 may"}
    assert "is no name of a queue" in program.call(2, "probe", pod=POD, container={}, args=["../x", "0"])["error"]


def test_a_data_set_is_unpacked_once_and_never_outside(start: Start, tmp_path: Path) -> None:
    archives, path = tmp_path / "archives", tmp_path / "volume"
    archives.mkdir()
    path.mkdir()
    with zipfile.ZipFile(archives / "a.zip", "w") as archive:
        archive.writestr("texts/a", "data\n")
        archive.writestr("../../outside", "x")
    program = start(SAMPLES / "dataset-volume.py", source=str(archives))
    assert program.hello["offers"] == ["volume"]

    def set_up(number: int, name: str) -> Json:
        return program.call(number, "set_up", pod=POD, volume="data", path=str(path), options={"archive": name})

    (path / ".part").mkdir()  # of a program that was killed
    (path / "half").touch()
    number = 1
    while "wait" in (answer := set_up(number, "a.zip"))["result"]:
        number += 1
    assert answer["result"] == {"ready": True}
    assert sorted(entry.name for entry in path.iterdir()) == ["outside", "texts"]
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["archives", "volume"]
    (path / "texts/a").write_text("changed")
    assert set_up(100, "a.zip")["result"] == {"ready": True}
    assert (path / "texts/a").read_text() == "changed"
    for name in ("../a.zip", "", ".a.zip"):
        assert "is no name of a file" in set_up(101, name)["error"]
    pod = {"metadata": {"uid": "u1"}}
    for number in (102, 103):
        assert program.call(number, "tear_down", pod=pod, volume="data", path=str(path)) == {"id": number, "result": {}}
