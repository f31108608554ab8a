"""Extensions that are processes, with a real agent and real containers: the samples, and hostile ones that hurt no pod."""

from __future__ import annotations

import json
import os
import socket
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from agent.conftest import MakeAgent
from support.agent import PROGRAM, Agent, Json, container_status, make_container, make_pod
from support.processes import wait_end
from testbed import host

from pykubelet.edges.plugins.extension_limits import MEMORY_BYTES, PIDS

pytestmark = pytest.mark.integration
SAMPLES = Path(__file__).parents[2] / "examples" / "extensions"
WARM = "cache.example.com/warm"
HELLO = """#!{python}
import json, os, sys, time

sys.stdin.readline()
print(json.dumps({{"version": "1.0", "offers": ["need", "probe"], "annotation": "example.com/hostile"}}), flush=True)
"""
#: What a program does after its answer to `hello`; the first does not come to it.
HOSTILE = {
    "dies at once": None,
    "endless output": "while True: print('{}', flush=True)",
    "endless lines of errors": "while True: print('x' * 10000, file=sys.stderr)",
    "no answer": "time.sleep(3600)",
    "a line of 2 MiB": "print('x' * (2 << 20), flush=True)\ntime.sleep(3600)",
    "invalid JSON": "print('hello', flush=True)\ntime.sleep(3600)",
    "fork bomb": "while True:\n    try:\n        os.fork()\n    except OSError:\n        pass",
    "1 GiB of memory": "held = []\nwhile True: held.append(bytearray(b'x' * (1 << 20)))",
    "children in other sessions": "for _ in range(20):\n    if os.fork() == 0:\n        os.setsid()\n        break\ntime.sleep(3600)",
}


def install(name: str, folder: Path, **settings: Any) -> str:
    """A sample as it is installed, with its settings: the value of the flag."""
    text = (SAMPLES / f"{name}.py").read_text()
    program, config = folder / f"{name}.py", folder / f"{name}.yaml"
    program.write_text(text.replace("#!/usr/bin/env python3", f"#!{PROGRAM.parent}/python3", 1))
    program.chmod(0o755)
    config.write_text(yaml.safe_dump(settings))
    return f"{program}={config}"


def shown(agent: Agent, name: str) -> Json:
    """An extension as `explain node` shows it."""
    found: list[Json] = agent.ask_json("explain", "node")["extensions"]
    return next(extension for extension in found if extension["name"] == name)


async def wait_on(agent: Agent, name: str) -> None:
    await agent.wait_for(f"{name} is on", lambda: not shown(agent, name)["off"])


def pids(agent: Agent, name: str) -> list[int]:
    """The processes of an extension, by its cgroup."""
    group = Path(f"/sys/fs/cgroup/memory{agent.cgroup}/kubelet-extensions/{name}/cgroup.procs")
    unified = Path(f"/sys/fs/cgroup{agent.cgroup}/kubelet-extensions/{name}/cgroup.procs")
    return [int(line) for line in (host.read_control(group) or host.read_control(unified)).split()]


def send(path: Path, *messages: Json) -> list[str]:
    """The answers of the socket of the sample to these messages."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        client.connect(str(path))
        with client.makefile("rw") as lines:
            answers = []
            for message in messages:
                print(json.dumps(message), file=lines, flush=True)
                answers.append(lines.readline().strip())
    return answers


async def test_a_message_socket_as_a_source_of_pods(make_agent: MakeAgent, tmp_path: Path) -> None:
    path, state = tmp_path / "pods.sock", tmp_path / "pods.json"
    agent = make_agent(flags=("--extension", install("message-socket", tmp_path, socket=str(path), state=str(state))))
    agent.put(make_pod("from-file"))
    agent.start()
    await agent.wait_running("from-file")
    await agent.wait_for("the socket", path.exists)
    assert send(path, {"apply": make_pod("a")}, {"apply": make_pod("b")}, {"x": 1}) == [
        "ok",
        "ok",
        'error: expected {"apply": {a v1 Pod}} or {"delete": "NAME"}',
    ]
    await agent.wait_running("a", "b")
    sources = {pod["name"]: pod["source"] for pod in agent.ask_json("pods")["pods"]}
    assert sources["a-node"] == "extension:message-socket"
    began = (await agent.look()).running_ids()

    # a set with a wrong pod is a problem, and changes nothing
    send(path, {"apply": {"metadata": {"name": "wrong"}, "spec": {}}})

    def problems() -> str:
        return json.dumps(agent.ask_json("pods")["problems"])

    await agent.wait_for("the problem is shown", lambda: "extension:message-socket" in problems())
    assert "items[2].spec.containers" in problems()
    send(path, {"delete": "wrong"})
    await agent.wait_for("the problem is gone", lambda: problems() == "[]")

    # its process is killed: the pods stay, and it is started again
    (pid,) = pids(agent, "message-socket")
    os.kill(pid, 9)
    await agent.wait_for("it is away", lambda: "signal 9" in shown(agent, "message-socket")["error"])
    await agent.wait_for("another process", lambda: pids(agent, "message-socket") not in ([], [pid]))
    await wait_on(agent, "message-socket")

    # the agent is killed: the pods stay
    agent.kill9()
    agent.start()
    await wait_on(agent, "message-socket")
    await agent.wait_running("a", "b", "from-file")
    assert (await agent.look()).running_ids() == began

    send(path, {"delete": "a"})
    await agent.wait_gone("a")
    (pid,) = pids(agent, "message-socket")
    assert agent.stop() == 0
    wait_end(pid)


async def test_pods_of_a_source_that_stays_away_outlive_a_restart_of_the_agent(
    make_agent: MakeAgent, tmp_path: Path
) -> None:
    path, state = tmp_path / "pods.sock", tmp_path / "pods.json"
    flag = install("message-socket", tmp_path, socket=str(path), state=str(state))
    agent = make_agent(flags=("--extension", flag)).start()
    await agent.wait_for("the socket", path.exists)
    send(path, {"apply": make_pod("a")})
    await agent.wait_running("a")
    began = (await agent.look()).running_ids()
    assert agent.stop() == 0
    program = Path(flag.partition("=")[0])
    good = program.read_text()
    program.write_text("#!/bin/sh\nexit 7\n")
    agent.put(make_pod("from-file"))
    agent.start()
    await agent.wait_running("from-file")
    await agent.wait_for("the error is shown", lambda: "exit status 7" in shown(agent, "message-socket")["error"])
    assert "extension:message-socket" in json.dumps(agent.ask_json("pods")["problems"])
    agent.remove("from-file")
    await agent.wait_gone("from-file")  # what is not wanted is ended, without waiting for the extension
    assert (await agent.look()).running_ids() == began
    program.write_text(good)
    await wait_on(agent, "message-socket")
    await agent.wait_running("a")
    assert (await agent.look()).running_ids() == began


async def test_a_warm_cache_as_a_need(make_agent: MakeAgent, tmp_path: Path) -> None:
    archive, cache = tmp_path / "archive", tmp_path / "cache"
    for name in ("base", "model", "other"):
        (archive / name).mkdir(parents=True)
        (archive / name / "data").write_text(f"data of {name}\n")
    agent = make_agent(
        flags=("--extension", install("warm-cache", tmp_path, source=str(archive), cache=str(cache), keep=0))
    ).start()
    await wait_on(agent, "warm-cache")
    mounts = [{"name": "cache", "mountPath": "/cache"}]
    script = 'cat /cache/base/data /cache/model/data; trap "exit 0" TERM; while :; do sleep 3600 & wait $!; done'
    pod = make_pod(
        "web",
        make_container(script=script, volumeMounts=mounts),
        annotations={WARM: "base, model"},
        volumes=[{"name": "cache", "hostPath": {"path": str(cache)}}],
    )
    agent.put(pod, make_pod("plain"), make_pod("wrong", annotations={WARM: "missing"}))
    await agent.wait_running("web", "plain")
    await agent.wait_for("its output", lambda: agent.output("web", "main") == "data of base\ndata of model\n")
    assert sorted(os.listdir(cache)) == ["base", "model"]

    def why() -> str:
        return json.dumps(agent.explain("wrong"))

    words = ("there is no data set missing", "ExtensionFailed")
    await agent.wait_for("the error is shown", lambda: (text := why()) and all(word in text for word in words))
    agent.remove("web")
    await agent.wait_gone("web")
    await agent.wait_for("the data sets are removed", lambda: os.listdir(cache) == [])

    # while the process is away, pods that need it wait, and others do not
    program = tmp_path / "warm-cache.py"
    good = program.read_text()
    program.write_text("#!/bin/sh\nexit 7\n")
    for pid in pids(agent, "warm-cache"):
        os.kill(pid, 9)
    await agent.wait_for("it is away", lambda: "exit status 7" in shown(agent, "warm-cache")["error"])
    agent.put(make_pod("late", annotations={WARM: "other"}), make_pod("plain-too"))
    await agent.wait_running("plain-too")

    def away() -> list[str]:
        return [wait["subject"] for wait in agent.explain("late")["waits"] if wait["reason"] == "ExtensionAway"]

    assert await agent.wait_for("the wait is shown", away) == ["warm-cache"]
    program.write_text(good)
    assert agent.ask("extensions", "enable", "warm-cache").returncode == 0
    await agent.wait_running("late")
    assert os.listdir(cache) == ["other"]


async def test_a_journal_as_an_observer_and_a_probe_of_a_queue(make_agent: MakeAgent, tmp_path: Path) -> None:
    journal, queues = tmp_path / "journal.jsonl", tmp_path / "queues"
    (queues / "orders").mkdir(parents=True)
    agent = make_agent(
        flags=(
            *("--extension", install("pod-journal", tmp_path, file=str(journal))),
            *("--extension", install("queue-depth", tmp_path, queues=str(queues))),
        )
    ).start()
    await wait_on(agent, "pod-journal")
    await wait_on(agent, "queue-depth")
    command = {"exec": {"command": ["extension:queue-depth", "orders", "1"]}, "periodSeconds": 1, "failureThreshold": 1}
    agent.put(make_pod("web", make_container(readinessProbe=command)))
    await agent.wait_running("web")
    for name in "ab":
        (queues / "orders" / name).touch()
    await agent.wait_pod("web", "not ready", lambda pod: not container_status(pod)["ready"])
    assert "2 messages wait in orders; 1 may" in json.dumps(agent.explain("web"))
    (queues / "orders" / "a").unlink()
    await agent.wait_running("web")
    agent.remove("web")
    await agent.wait_gone("web")

    def journaled(what: str) -> list[str]:
        lines = map(json.loads, journal.read_text().splitlines())
        return [line[what] for line in lines if line["pod"] == "default/web-node" and what in line]

    await agent.wait_for("the last line", lambda: "gone" in journaled("stage"))
    assert [stage for stage in journaled("stage") if stage != "finished"] == [
        "syncing", "terminating", "terminated", "gone",
    ]  # fmt: skip
    assert journaled("phase")[:2] == ["Pending", "Running"]  # the last may be gone before it is published


async def test_data_sets_as_a_volume_kind(make_agent: MakeAgent, tmp_path: Path) -> None:
    archives = tmp_path / "archives"
    archives.mkdir()
    with zipfile.ZipFile(archives / "corpus.zip", "w") as archive:
        archive.writestr("texts/a", "data of a\n")
    agent = make_agent(flags=("--extension", install("dataset-volume", tmp_path, source=str(archives)))).start()
    await wait_on(agent, "dataset-volume")

    def with_data(name: str, archive: str, **options: str) -> Json:
        source = {"driver": "extension/dataset-volume", "readOnly": True, "options": {"archive": archive, **options}}
        script = 'cat /data/texts/a; touch /data/x || trap "exit 0" TERM; while :; do sleep 3600 & wait $!; done'
        container = make_container(script=script, volumeMounts=[{"name": "data", "mountPath": "/data"}])
        return make_pod(name, container, volumes=[{"name": "data", "flexVolume": source}])

    agent.put(with_data("web", "corpus.zip"), with_data("wrong", "corpus.zip", sha256="0"), make_pod("plain"))
    (web, _) = await agent.wait_running("web", "plain")
    await agent.wait_for("its output", lambda: "data of a\n" in agent.output("web", "main"))
    folder = agent.root / "pods" / web["metadata"]["uid"] / "volumes/extension~dataset-volume/data"
    assert os.listdir(folder) == ["texts"], "the container cannot write, and no part is left"
    await agent.wait_for("the error is shown", lambda: "has another sha256" in json.dumps(agent.explain("wrong")))

    # while the process is away, pods with its volumes wait, and others do not
    program = tmp_path / "dataset-volume.py"
    good = program.read_text()
    program.write_text("#!/bin/sh\nexit 7\n")
    for pid in pids(agent, "dataset-volume"):
        os.kill(pid, 9)
    await agent.wait_for("it is away", lambda: "exit status 7" in shown(agent, "dataset-volume")["error"])
    agent.put(with_data("late", "corpus.zip"), make_pod("plain-too"))
    await agent.wait_running("plain-too")

    def why() -> list[str]:
        return [wait["detail"] for wait in agent.explain("late")["waits"] if wait["what"] == "volume"]

    words = "extension dataset-volume: it has ended, and is started again"
    await agent.wait_for("the wait is shown", lambda: any(words in detail for detail in why()))
    program.write_text(good)
    assert agent.ask("extensions", "enable", "dataset-volume").returncode == 0
    await agent.wait_running("late")

    # over a restart of the agent, a pod keeps its volume until it ends
    began = (await agent.look()).running_ids()
    agent.kill9()
    agent.start()
    await agent.wait_running("web", "late", "plain")
    assert (await agent.look()).running_ids() == began and os.listdir(folder) == ["texts"]
    agent.remove("web", "wrong")
    await agent.wait_gone("web", "wrong")
    await agent.wait_for("its files are removed", lambda: not folder.exists())


def hostile(folder: Path, what: str) -> Path:
    path = folder / "hostile.py"
    act = HOSTILE[what]
    path.write_text("#!/bin/sh\nexit 1\n" if act is None else HELLO.format(python=f"{PROGRAM.parent}/python3") + act)
    path.chmod(0o755)
    return path


def memory_of(agent: Agent) -> int:
    group = Path(f"/sys/fs/cgroup/memory{agent.cgroup}/kubelet-extensions/hostile/memory.max_usage_in_bytes")
    unified = Path(f"/sys/fs/cgroup{agent.cgroup}/kubelet-extensions/hostile/memory.peak")
    return int(host.read_control(group) or host.read_control(unified) or 0)


@pytest.mark.parametrize("what", HOSTILE)
async def test_a_hostile_process_hurts_no_pod(make_agent: MakeAgent, tmp_path: Path, what: str) -> None:
    agent = make_agent(flags=("--extension", str(hostile(tmp_path, what))))
    probe = {"exec": {"command": ["true"]}, "periodSeconds": 1, "timeoutSeconds": 5}
    agent.put(make_pod("before", make_container(livenessProbe=probe)))
    agent.start()
    await agent.wait_running("before")
    most = peak = 0
    until = time.monotonic() + 5.0
    names = [f"web-{number}" for number in range(4)]
    agent.put(*map(make_pod, names))
    while time.monotonic() < until:
        most, peak = max(most, len(pids(agent, "hostile"))), max(peak, memory_of(agent))
        await agent.wait_for("a moment", _after(0.1))
    await agent.wait_running("before", *names)
    assert most <= PIDS and peak <= MEMORY_BYTES
    if what == "fork bomb":
        assert most > PIDS // 2
    if what == "1 GiB of memory":
        assert peak > MEMORY_BYTES // 2
    restarts = [container_status(pod)["restartCount"] for pod in await agent.wait_running("before", *names)]
    assert set(restarts) == {0}
    if what not in ("no answer", "fork bomb", "endless lines of errors", "children in other sessions"):
        assert shown(agent, "hostile")["error"]
    assert len(agent.log_text()) < 8 << 20
    left = pids(agent, "hostile")
    assert agent.stop() == 0
    for pid in left:
        wait_end(pid)
    assert pids(agent, "hostile") == []


def _after(seconds: float) -> Callable[[], bool]:
    until = time.monotonic() + seconds
    return lambda: time.monotonic() >= until


async def test_what_a_killed_agent_leaves_is_ended_at_the_next_start(make_agent: MakeAgent, tmp_path: Path) -> None:
    agent = make_agent(flags=("--extension", str(hostile(tmp_path, "children in other sessions")))).start()
    await agent.wait_for("its children", lambda: len(pids(agent, "hostile")) > 20)
    left = pids(agent, "hostile")
    agent.kill9()
    agent.start()
    await wait_on(agent, "hostile")
    for pid in left:
        wait_end(pid)


async def test_without_a_process_extension_nothing_of_them_is_imported(make_agent: MakeAgent, tmp_path: Path) -> None:
    agent = make_agent()
    agent.environment["PYTHONPROFILEIMPORTTIME"] = "1"
    agent.start()
    agent.put(make_pod("web"))
    await agent.wait_running("web")
    assert "pykubelet.act.pods.need" in agent.log_text()
    for module in ("extension_process", "need_extension", "flex.extension_calls"):
        assert module not in agent.log_text()
