"""Situations as files: manifests, what is done with them, and what must be so in the end. `docs/recipes/field-report.md` has the format.

Owns the reading of these files and their run on one agent. All situations of a run go on at the same time; a restart of the agent waits
until every other situation has ended or needs one too.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from support.agent import NODE_NAME, WAIT_S, Agent, Json, runtime_client
from testbed import images
from testbed.host import free_port

from pykubelet.base.model.ids import ContainerID, SandboxID

_FILE = re.compile(r"# file: (\S+)")
#: Seconds between two looks at the pods, for all situations together.
STEP_S = 0.15
#: Situations at the same time, beside those that wait for a restart.
AT_ONCE = 16


class NotSo(AssertionError):
    """A situation is not as it should be, with the agent's account of the pod."""


@dataclass
class Situation:
    """One file. `files`: the manifests by file name, as they are written. `steps`: each a map of one entry."""

    name: str
    about: str
    files: dict[str, str]
    steps: list[Json]
    never: Json = field(default_factory=dict)

    @property
    def pods(self) -> list[str]:
        """The names of its pods."""
        found = (yaml.safe_load(_plain(text)) for text in self.files.values())
        return [str(document["metadata"]["name"]) for document in found if document.get("kind") == "Pod"]


def _plain(text: str) -> str:
    """The text for a reader that does not know the escape of go-yaml."""
    return text.replace("\\'", "'")


def read_situation(path: Path) -> Situation:
    """Read a file. Raises ValueError with what is wrong with it."""
    head, *manifests = re.split(r"^---\n", path.read_text(), flags=re.MULTILINE)
    stated = yaml.safe_load(head)
    if (
        not isinstance(stated, dict)
        or not stated.keys() <= {"about", "steps", "never", "expect"}
        or "about" not in stated
    ):
        raise ValueError(f"{path.name}: the first document has about, steps or expect, and never")
    files: dict[str, str] = {}
    for text in manifests:
        named = _FILE.match(text)
        files[named[1] if named else f"{path.stem}.yaml"] = text
    steps = list(stated.get("steps", ()))
    if "expect" in stated:
        steps.append({"expect": stated["expect"]})
    kinds = [next(iter(step)) for step in steps]
    if "put" not in kinds[: kinds.index("expect")]:
        steps.insert(0, {"put": list(files)})
    unknown = [step for step in steps if len(step) != 1 or next(iter(step)) not in STEPS]
    if unknown:
        raise ValueError(f"{path.name}: these are no steps: {unknown}; known are {', '.join(STEPS)}")
    return Situation(path.stem, stated["about"], files, steps, stated.get("never", {}))


class Run:
    """A run of several situations on one agent. `errors`: by the name of the situation; an entry without an error is None."""

    def __init__(self, agent: Agent, folder: Path) -> None:
        self.agent = agent
        self.folder = folder
        self.errors: dict[str, BaseException | None] = {}
        self._pods: dict[str, Json] = {}
        self._looks = 0
        self._looked = asyncio.Condition()
        self._slots = asyncio.Semaphore(AT_ONCE)
        self._going = 0
        self._waiting = 0
        self._while_away: list[Callable[[], None]] = []
        self._restarts = asyncio.Condition()
        self._epoch = 0

    async def all(self, situations: Iterable[Situation]) -> dict[str, BaseException | None]:
        """Run the situations and return their errors."""
        courses = [_Course(self, situation) for situation in situations]
        self._going = len(courses)
        looks = asyncio.create_task(self._look())
        try:
            await asyncio.gather(*(self._run_course(course) for course in courses))
        finally:
            looks.cancel()
        return self.errors

    async def _run_course(self, course: _Course) -> None:
        error: BaseException | None = None
        try:
            async with self._slots:
                await course.run()
        except Exception as problem:  # noqa: BLE001 - it fails its own test
            error = problem
        self.errors[course.situation.name] = error
        async with self._restarts:
            self._going -= 1
            self._restarts.notify_all()

    async def _look(self) -> None:
        while True:
            pods = await asyncio.to_thread(self.agent.pods)
            async with self._looked:
                self._pods, self._looks = pods, self._looks + 1
                self._looked.notify_all()
            await asyncio.sleep(STEP_S)

    async def next_pods(self) -> dict[str, Json]:
        """All pods, as they are from now on."""
        async with self._looked:
            seen = self._looks
            await self._looked.wait_for(lambda: self._looks > seen + 1)
            return self._pods

    async def restart_agent(self, while_away: Callable[[], None]) -> None:
        """Restart the agent together with all other situations that need it. Each may do something while there is none."""
        self._slots.release()
        async with self._restarts:
            self._waiting += 1
            self._while_away.append(while_away)
            epoch = self._epoch
            self._restarts.notify_all()
            await self._restarts.wait_for(lambda: self._epoch > epoch or self._waiting == self._going)
            if self._epoch == epoch:
                await asyncio.to_thread(self._restart)
                self._epoch, self._waiting = self._epoch + 1, 0
                self._restarts.notify_all()
        await self._slots.acquire()

    def _restart(self) -> None:
        assert self.agent.stop() == 0
        for do in self._while_away:
            do()
        self._while_away.clear()
        self.agent.start()


class _Course:
    """One situation under way."""

    def __init__(self, run: Run, situation: Situation) -> None:
        self.situation = situation
        self._run = run
        self._agent = run.agent
        self._folder = run.folder / situation.name
        self._folder.mkdir()
        self._names = {
            "$DIR": str(self._folder),
            "$IMAGE": images.BUSYBOX,
            "$PORT": str(free_port(0)),
            "$MANIFESTS": str(run.agent.manifests),
        }
        self._kept: dict[str, list[str]] = {}
        self._tags: list[str] = []

    async def run(self) -> None:
        try:
            for step in self.situation.steps:
                [(kind, value)] = step.items()
                await STEPS[kind](self, value)
        finally:
            if self._tags:
                await asyncio.to_thread(self._agent.testbed.ctr, "images", "rm", *self._tags)

    def _text(self, file: str) -> str:
        return self._filled(self.situation.files[file])

    def _filled(self, text: str) -> str:
        for name, value in self._names.items():
            text = text.replace(name, value)
        return text

    def _pod_name(self, value: Json) -> str:
        return str(value.get("pod") or self.situation.pods[0])

    # Steps

    async def put(self, files: list[str]) -> None:
        for name in files:
            self._agent.put_text(name, self._text(name))

    async def edit(self, value: Json) -> None:
        """Write a manifest anew, with another text in one place."""
        name = value["file"]
        before, after = str(value["from"]), str(value["to"])
        assert before in self.situation.files[name], f"{name} has no {before}"
        self.situation.files[name] = self.situation.files[name].replace(before, after)
        await self.put([name])

    async def save(self, name: str) -> None:
        """Save an unchanged manifest as vim does: rename it, write it anew, remove the backup."""
        file = self._agent.manifests / name
        backup = file.with_name(f"{name}~")
        file.rename(backup)
        await asyncio.sleep(0.05)
        file.write_text(self._text(name))
        backup.unlink()

    async def remove(self, files: list[str]) -> None:
        for name in files:
            (self._agent.manifests / name).unlink()

    async def host(self, command: str) -> None:
        """Run a command on the host, in the folder of the situation."""
        await asyncio.to_thread(self._on_host, command)

    def _on_host(self, command: str) -> None:
        argv = ["sh", "-ec", self._filled(command)]
        done = subprocess.run(argv, cwd=self._folder, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"

    async def tag(self, value: Json) -> None:
        """Give an image of the runtime a further name, until the end of the situation: other tests use the image too."""
        testbed, names = self._agent.testbed, (self._filled(value["image"]), self._filled(value["as"]))
        self._tags.append(names[1])
        await asyncio.to_thread(testbed.ctr, "images", "tag", "--force", *names)

    async def stop_sandbox(self, pod: str) -> None:
        """Stop the sandbox behind the agent's back, as `crictl stopp` does."""
        [sandbox] = (await self._agent.look()).of(f"{pod}-{NODE_NAME}").ready
        async with runtime_client(self._agent.testbed, WAIT_S) as client:
            await client.stop_pod_sandbox(SandboxID(sandbox.id))

    async def remove_container(self, value: str) -> None:
        """Remove the newest instance of an ended container, `pod/container`, behind the agent's back."""
        pod, _, container = value.partition("/")
        key, instance = _statuses((await self._run.next_pods())[pod])[container]["containerID"].split("://")
        assert key == "containerd"
        async with runtime_client(self._agent.testbed, WAIT_S) as client:
            await client.remove_container(ContainerID(instance))

    async def kill(self, value: str) -> None:
        """SIGKILL to the first process of a container, `pod/container`."""
        pod, _, container = value.partition("/")
        ids = (await self._agent.look()).of(f"{pod}-{NODE_NAME}").running_ids()
        await self._agent.kill_container(ids[f"{pod}-{NODE_NAME}/{container}"])

    async def restart(self, value: str | Json) -> None:
        """Restart the agent: `agent`, or `{away: COMMAND}` with what is done on the host meanwhile."""
        command = value["away"] if isinstance(value, dict) else "true"
        await self._run.restart_agent(lambda: self._on_host(command))

    async def wait(self, seconds: float) -> None:
        """Let time pass, where the situation is about a span of time."""
        await asyncio.sleep(seconds)

    async def expect(self, value: Json | list[Json]) -> None:
        for expected in value if isinstance(value, list) else [value]:
            await self._expect_one(expected)

    async def _expect_one(self, wanted: Json) -> None:
        wanted = json.loads(self._filled(json.dumps(wanted)))
        name = self._pod_name(wanted)
        begin = time.monotonic()
        deadline = begin + WAIT_S
        while True:
            pod = (await self._run.next_pods()).get(name)
            await self._check_never(pod)
            wrong = [text for key, part in wanted.items() for text in await self._differences(key, part, name, pod)]
            if not wrong:
                early = float(wanted.get("after", 0)) - (time.monotonic() - begin)
                if early > 0:
                    raise NotSo(f"{self.situation.about}\n{early:.1f} s too early: {wanted}")
                self._kept[name] = _instances(pod)
                return
            if time.monotonic() > deadline:
                explained = await asyncio.to_thread(lambda: self._agent.ask("explain", f"{name}-{NODE_NAME}").stdout)
                status = json.dumps(pod["status"]) if pod is not None else "not there"
                raise NotSo(f"{self.situation.about}\n" + "\n".join(wrong) + f"\n{explained}\n{status}")

    async def _check_never(self, pod: Json | None) -> None:
        """Nothing of `never` may be true of the first pod, once an expectation was met."""
        never = self.situation.never
        if pod is not None and never and self._kept and pod["metadata"]["name"] == self.situation.pods[0]:
            for key, value in never.items():
                parts = value.items() if isinstance(value, Mapping) else [(None, value)]
                for part, unwanted in parts:
                    now = _FACTS[key](pod)
                    now = now if part is None else now.get(part)
                    if _fits(unwanted, now):
                        raise NotSo(f"{self.situation.about}\n{key} {part or ''} was {now}: {pod['status']}")

    async def _differences(self, key: str, wanted: Any, name: str, pod: Json | None) -> list[str]:
        """What is not as it should be."""
        if key in ("pod", "after"):
            return []
        if key in _ASKED:
            return await asyncio.to_thread(_ASKED[key], self._agent, name, wanted)
        if pod is None:
            return [f"{key}: the pod is not there"]
        if key == "same":
            now, before = _instances(pod), self._kept.get(name, [])
            return [] if now == before and now else [f"other instances: {now}, before {before}"]
        if key in ("output", "silent"):
            read = {container: self._agent.output(name, container, _count(pod, container)) for container in wanted}
            return [
                f"{key}, {container}: {text!r} in {read[container]!r}"
                for container, texts in wanted.items()
                for text in _listed(texts)
                if (text in read[container]) != (key == "output")
            ]
        now = _FACTS[key](pod)
        if isinstance(wanted, Mapping):
            return [f"{key} {k}: {now.get(k)}, not {v}" for k, v in wanted.items() if not _fits(v, now.get(k))]
        return [] if _fits(wanted, now) else [f"{key}: {now}, not {wanted}"]


def _fits(wanted: Any, found: Any) -> bool:
    """Whether a value is as wanted; text that ends with `...` fits any longer one."""
    if isinstance(wanted, str) and wanted.endswith("..."):
        return str(found).startswith(wanted.removesuffix("..."))
    return bool(wanted == found)


def _statuses(pod: Json) -> dict[str, Json]:
    status = pod["status"]
    return {
        container["name"]: container
        for container in (*status.get("initContainerStatuses", []), *status.get("containerStatuses", []))
    }


def _instances(pod: Json | None) -> list[str]:
    return [str(container.get("containerID")) for container in _statuses(pod).values()] if pod is not None else []


def _count(pod: Json, container: str) -> int:
    return int(_statuses(pod).get(container, {}).get("restartCount", 0))


def _state(state: Json) -> str:
    """`running`, `waiting REASON` or `terminated REASON CODE`."""
    if "running" in state:
        return "running"
    if "waiting" in state:
        return f"waiting {state['waiting'].get('reason', '')}"
    if "terminated" in state:
        ended = state["terminated"]
        return f"terminated {ended.get('reason', '')} {ended.get('exitCode')}"
    return ""


def _ended(status: Json) -> Json:
    """How the container ended, or the instance before."""
    for key in ("state", "lastState"):
        if ended := status.get(key, {}).get("terminated"):
            return dict(ended)
    return {}


def _condition(condition: Json) -> str:
    return f"{condition['status']} {condition.get('reason', '')}".strip()


_FACTS: dict[str, Callable[[Json], Any]] = {
    "phase": lambda pod: pod["status"].get("phase", ""),
    "reason": lambda pod: pod["status"].get("reason", ""),
    "message": lambda pod: pod["status"].get("message", ""),
    "containers": lambda pod: {name: _state(container["state"]) for name, container in _statuses(pod).items()},
    "last": lambda pod: {name: _state(container.get("lastState", {})) for name, container in _statuses(pod).items()},
    "restarts": lambda pod: {name: container["restartCount"] for name, container in _statuses(pod).items()},
    "ready": lambda pod: {name: container["ready"] for name, container in _statuses(pod).items()},
    "started": lambda pod: {name: container.get("started") for name, container in _statuses(pod).items()},
    "messages": lambda pod: {name: _ended(container).get("message", "") for name, container in _statuses(pod).items()},
    "images": lambda pod: {name: container["image"] for name, container in _statuses(pod).items()},
    "conditions": lambda pod: {
        condition["type"]: _condition(condition) for condition in pod["status"].get("conditions", [])
    },
    "annotations": lambda pod: pod["metadata"].get("annotations", {}),
}


def _explained(agent: Agent, name: str, wanted: str | list[str]) -> list[str]:
    text = " ".join(agent.ask("explain", f"{name}-{NODE_NAME}").stdout.split())
    return [f"explain does not show {part!r}: {text}" for part in _listed(wanted) if not _is_in(part, text)]


def _is_in(part: str, text: str) -> bool:
    """Whether a text, or a pattern between slashes, is in a text."""
    pattern = re.fullmatch("/(.+)/", part)
    return part in text if pattern is None else re.search(pattern[1], text) is not None


def _listed(wanted: Any) -> list[str]:
    return [str(item) for item in wanted] if isinstance(wanted, list) else [str(wanted)]


def _noted(kind: str) -> Callable[[Agent, str, Any], list[str]]:
    """The problems or remarks of `explain node` that are about files with the pod's name in theirs: all wanted texts, and no other."""

    def check(agent: Agent, name: str, wanted: str | list[str]) -> list[str]:
        notes = agent.ask_json("explain", "node")[kind]
        texts = [
            f"{note['field_path']}: {note['reason']}" for note in notes if name in os.path.basename(note["origin"])
        ]
        missing = [
            f"no one of {kind} has {part!r}: {texts}" for part in _listed(wanted) if not any(part in t for t in texts)
        ]
        more = len(texts) > len(_listed(wanted))
        return missing or ([f"more {kind} than expected: {texts}"] if more else [])

    return check


def _gone(agent: Agent, name: str, _: bool) -> list[str]:
    there = [pod["stage"] for pod in agent.ask_json("pods")["pods"] if pod["name"] == f"{name}-{NODE_NAME}"]
    return [f"the pod is still there, {there}"] if there else []


_ASKED: dict[str, Callable[[Agent, str, Any], list[str]]] = {
    "gone": _gone,
    "explained": _explained,
    "problems": _noted("problems"),
    "remarks": _noted("remarks"),
}
STEPS: dict[str, Callable[[_Course, Any], Awaitable[None]]] = {
    "put": _Course.put,
    "edit": _Course.edit,
    "save": _Course.save,
    "remove": _Course.remove,
    "host": _Course.host,
    "tag": _Course.tag,
    "stop-sandbox": _Course.stop_sandbox,
    "kill": _Course.kill,
    "remove-container": _Course.remove_container,
    "restart": _Course.restart,
    "wait": _Course.wait,
    "expect": _Course.expect,
}
