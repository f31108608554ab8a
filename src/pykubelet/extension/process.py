"""For authors of extensions that are processes of their own: a class with a method for each point, and `serve`.

    #!/usr/bin/python3
    from pykubelet.extension.process import Process, Wait, serve

    class WarmCache(Process):
        def prepare(self, pod):
            return None if self.is_warm(pod) else Wait("the cache is being filled", again_s=5)

    serve(WarmCache())

What the program offers is what its class defines. Methods run in threads, several at a time; what they raise is the error of the call.
What the program prints goes to the agent's log. `docs/extensions/protocol.md` has the protocol. Only the standard library is
needed.
"""

from __future__ import annotations

import base64
import json
import os
import sys
import threading
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, BinaryIO

#: The version of the protocol.
VERSION = "1.0"
#: Calls that run at a time; further ones wait.
THREADS = 8
#: Seconds that the end waits for an observer that has not taken all yet.
NOTICES_S = 0.3
#: An object of the Kubernetes API as JSON has it.
Json = dict[str, Any]


@dataclass(frozen=True)
class Wait:
    """The result of `prepare` or `set_up` for what is not ready yet: the reason, and in how many seconds to ask again (0.5 to 60)."""

    reason: str
    again_s: float = 2.0


@dataclass(frozen=True)
class Volume:
    """A volume of a pod. `name`: that of the pod's volume, or of its PersistentVolume. `path`: its directory, which the agent has made.

    `pod`: a v1 Pod; for `tear_down`, it has only its UID, and what follows is empty. `read_only`: containers cannot write to it.
    `options`, `fs_type`: as the pod states them. `secrets`: the data of its secret.
    """

    pod: Json
    name: str
    path: str
    read_only: bool = False
    fs_type: str = ""
    options: Mapping[str, str] = field(default_factory=dict)
    secrets: Mapping[str, bytes] = field(default_factory=dict, repr=False)


class Process:
    """The base of such extensions. A point that a class does not define is not offered.

    `node`: the node's name. `settings`: the content of the settings file. Both are set before `start` is called. `annotation`: only
    pods with this annotation are prepared; empty: all pods are.
    """

    node: str = ""
    settings: Mapping[str, Any] = {}
    annotation: str = ""
    _out: BinaryIO | None = None
    _lock = threading.Lock()

    def start(self) -> None:
        """Begin, before anything else is called, within 10 seconds. An exception ends the program, which is started again later."""

    def stop(self) -> None:
        """End: the agent ends, or wants this program to end. There is one second."""

    def watch(self) -> None:
        """Be a source of pods (`source`): call `send_pods` whenever the set changes, and once at the start. Runs in a thread of its own."""
        raise NotImplementedError

    def send_pods(self, pods: Sequence[Json]) -> None:
        """Send the whole set of pods. For `watch`, from any thread."""
        self._send({"pods": pods})

    def prepare(self, pod: Json) -> Wait | None:
        """Prepare a pod before its containers start (`need`). None: it is prepared. May be called again for the same pod."""
        raise NotImplementedError

    def release(self, pod: Json) -> None:
        """Give back what `prepare` has made (`need`). `pod` has only its name, namespace and UID. No error if there is nothing."""

    def probe(self, pod: Json, container: Json, args: Sequence[str]) -> tuple[bool, str]:
        """Answer a probe with the command `extension:NAME ARGS` (`probe`): whether it succeeds, and a message."""
        raise NotImplementedError

    def set_up(self, volume: Volume) -> Wait | None:
        """Set up a volume with the driver `extension/NAME` at its path (`volume`). None: it is ready. May be called again for the same
        volume. What is mounted there, containers see."""
        raise NotImplementedError

    def tear_down(self, volume: Volume) -> None:
        """Undo `set_up` (`volume`). No error if there is nothing. The agent then unmounts what is left at the path, and deletes the
        directory with its files."""

    def on_transition(self, transition: Json) -> None:
        """A pod has come to another stage (`observer`)."""

    def on_status(self, pod: Json, status: Json) -> None:
        """The status of a pod has changed (`observer`)."""

    def offers(self) -> list[str]:
        """The points that the class defines."""
        points = {
            "source": ["watch"],
            "need": ["prepare"],
            "probe": ["probe"],
            "volume": ["set_up"],
            "observer": ["on_transition", "on_status"],
        }
        own = type(self)
        return [
            point
            for point, methods in points.items()
            if any(getattr(own, method) is not getattr(Process, method) for method in methods)
        ]

    def _send(self, message: Mapping[str, Any]) -> None:
        data = json.dumps(message, separators=(",", ":")).encode() + b"\n"
        with self._lock:
            assert self._out is not None, "`serve` has not begun"
            self._out.write(data)
            self._out.flush()


def serve(process: Process) -> None:
    """Run the extension until the agent ends it. Ends the program."""
    with os.fdopen(os.dup(1), "wb") as out, open(0, "rb", closefd=False) as lines:
        os.dup2(2, 1)  # what is printed is no message
        process._out = out
        hello = json.loads(next(lines))["hello"]
        process.node, process.settings = hello["node"], hello["settings"]
        process.start()
        process._send({"version": VERSION, "offers": process.offers(), "annotation": process.annotation})
        if "source" in process.offers():
            threading.Thread(target=_must_not_fail, args=(process.watch,), daemon=True).start()
        _take_all(process, lines)
    process.stop()
    sys.stderr.flush()
    os._exit(0)  # calls that still run are not waited for


def _take_all(process: Process, lines: Iterable[bytes]) -> None:
    calls = ThreadPoolExecutor(THREADS, "call")
    notices = ThreadPoolExecutor(1, "notice")  # in their order
    for line in lines:
        message = json.loads(line)
        if "call" in message:
            calls.submit(_answer, process, message)
        else:
            notices.submit(_notice, process, message)
    with suppress(TimeoutError):  # what was sent before the end
        notices.submit(bool).result(NOTICES_S)


def _answer(process: Process, message: Json) -> None:
    answer: Json
    try:
        answer = {"id": message["id"], "result": _result(process, message)}
    except Exception as error:  # noqa: BLE001 - the author's code: it is the error of the call
        traceback.print_exc()
        answer = {"id": message["id"], "error": f"{type(error).__name__}: {error}"}
    process._send(answer)


def _result(process: Process, message: Json) -> Json:
    match message["call"]:
        case "prepare":
            return _readiness(process.prepare(message["pod"]))
        case "set_up":
            return _readiness(process.set_up(_volume(message)))
        case "tear_down":
            process.tear_down(_volume(message))
            return {}
        case "release":
            process.release(message["pod"])
            return {}
        case "probe":
            success, text = process.probe(message["pod"], message["container"], message["args"])
            return {"success": success, "message": text}
        case call:
            raise ValueError(f"this program does not know the call {call}")


def _readiness(wait: Wait | None) -> Json:
    return {"ready": True} if wait is None else {"wait": wait.reason, "again_s": wait.again_s}


def _volume(message: Json) -> Volume:
    return Volume(
        message["pod"],
        message["volume"],
        message["path"],
        message.get("readOnly", False),
        message.get("fsType", ""),
        message.get("options", {}),
        {key: base64.b64decode(value) for key, value in message.get("secrets", {}).items()},
    )


def _notice(process: Process, message: Json) -> None:
    try:
        if "transition" in message:
            process.on_transition(message["transition"])
        elif "status" in message:
            process.on_status(message["status"]["pod"], message["status"]["status"])
    except Exception:  # noqa: BLE001 - the author's code
        traceback.print_exc()


def _must_not_fail(work: Callable[[], None]) -> None:
    """Run `watch`: without it, the set of pods would grow old unnoticed."""
    try:
        work()
    except BaseException:  # noqa: BLE001 - the author's code
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)
