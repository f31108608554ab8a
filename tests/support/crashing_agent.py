"""The agent with crash points: it kills itself with SIGKILL just before, in the middle of, or just after an effect.

An effect is what the agent does to the machine: a call that changes a file, a directory, a mount, a loop device or a cgroup,
every CRI or CSI call that changes something, and every patch of an object of the API server. A point is a moment of an effect
at a site. Coarse sites are distinguished by the kind of the effect and the three innermost functions of the agent; fine ones by
all lines of the call stack and by the kind of the object: a path without what differs from run to run, or the pod and the
container of a CRI call. This program sees the effects because it puts itself before the functions of `os`, of `edges/host/libc`,
and of the clients of CRI, CSI and the API server; the agent does not know of it. Programs that the agent starts, and other
calls of the API server, are not seen.

Run it as the agent itself, with the same arguments, and these variables:

PYKUBELET_CRASH_DONE    a file with a line for each point that needs no kill any more. The agent kills itself at the
                        first other point it comes to, and adds it first.
PYKUBELET_CRASH_ONLY    an identifier of a point: only there it kills itself. With "none" it only takes part in counting.
PYKUBELET_CRASH_MOMENTS the moments that count, with commas between them; all of them unless given.
PYKUBELET_CRASH_SITES   "coarse" or "fine", as above.
PYKUBELET_CRASH_SHARD   "i/n": only every n-th point counts, by its identifier.
PYKUBELET_CRASH_WITHIN  only points count with a module in their call stack that has this in its path.
PYKUBELET_CRASH_PLACES  places to leave out of the objects' kinds (the agent's own folder), with colons between them.

A kill does not lose what the kernel was given, so this states nothing about a power cut.
"""

from __future__ import annotations

import asyncio
import builtins
import fcntl
import hashlib
import json
import os
import re
import signal
import stat
import sys
import threading
from collections.abc import Callable, Coroutine
from types import FrameType
from typing import Any, TypeVar

T = TypeVar("T")
BEFORE, HALF, SENT, AFTER = "before", "half", "sent", "after"
MOMENTS = (BEFORE, HALF, SENT, AFTER)
#: CRI calls that change nothing: to be killed there is to be killed after the effect before it.
_QUESTIONS = re.compile(
    "^(List|Get|Version|Status|ImageStatus|ImageFsInfo|RuntimeConfig|Container(Status|Stats)|PodSandbox(Status|Stats))"
)
#: Functions of the call stack that distinguish coarse sites.
_NEAR = 3
#: A file of the agent, by its path in the package, or of a program beside it.
_PRODUCT = re.compile(r".*/src/(?:pykubelet/|(?=pykubelet_))(.*)")
_VARIABLE = (
    (re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}|[0-9a-f]{32,64}"), "<id>"),
    (re.compile(r"tmp-[0-9a-f]{8}"), "tmp-<hex>"),
    (re.compile(r"\b[0-9a-f]{8}\b"), "<hex>"),
    (re.compile(r"\d{8}-\d{6}|\d{4}_\d\d_\d\d_\d\d_\d\d_\d\d\.\d+"), "<time>"),
    (re.compile(r"(/containers|~empty-dir|~projected|~downward-api|/volume-subpaths)/.*"), r"\1/*"),
    (re.compile(r"^/default_[^/]+(/[^/]+)?"), "/<logs>"),
    (re.compile(r"/(logs|log/containers)/.*?(\.\w+)?$"), r"/\1/*\2"),
    (re.compile(r"^/sys/fs/cgroup/[^/]+/"), "/sys/fs/cgroup/*/"),
    (re.compile(r"\d+"), "<n>"),
)

#: LOOP_SET_FD and LOOP_CLR_FD of loop(4).
_LOOP_CHANGES = (0x4C00, 0x4C01)

_open, _write, _close, _kill, _truncate = os.open, os.write, os.close, os.kill, os.ftruncate
_lock = threading.Lock()
_inside = threading.local()


class CrashPoints:
    """Where to kill, from the environment variables."""

    def __init__(self, environment: dict[str, str]) -> None:
        self._done_file = environment["PYKUBELET_CRASH_DONE"]
        self._only = environment.get("PYKUBELET_CRASH_ONLY", "")
        self._moments = environment.get("PYKUBELET_CRASH_MOMENTS", ",".join(MOMENTS)).split(",")
        self._is_fine = environment.get("PYKUBELET_CRASH_SITES") == "fine"
        self._within = environment.get("PYKUBELET_CRASH_WITHIN", "")
        shard, _, of = environment.get("PYKUBELET_CRASH_SHARD", "0/1").partition("/")
        self._shard, self._of = int(shard), int(of)
        self._places = [p for p in environment.get("PYKUBELET_CRASH_PLACES", "").split(":") if p]
        self.calling: list[str] = []
        self._done = set()
        if os.path.exists(self._done_file):
            with open(self._done_file, encoding="utf-8") as stream:
                self._done = {json.loads(line)["point"] for line in stream if line.endswith("\n")}

    def begin(self, call: str) -> None:
        """Note a call before it is sent. Does not return if another thread is about to kill the agent."""
        with _lock:
            self.calling.append(call)

    def end(self, *calls: str) -> None:
        """Note that the calls are over."""
        with _lock:
            self.calling = [call for call in self.calling if call not in calls]

    def kind_of(self, path: str) -> str:
        """The path without what differs from pod to pod and from run to run."""
        for place in self._places:
            path = path.replace(place, "")
        for pattern, name in _VARIABLE:
            path = pattern.sub(name, path)
        return path

    def reach(self, moment: str, effect: str, kind: str, object_: str, stack: tuple[str, ...]) -> None:
        """The agent is at a point; does not return where it is one to be killed at."""
        if moment not in self._moments or not any(self._within in call for call in stack):
            return
        where = (kind, *stack) if self._is_fine else [call.rpartition(":")[0] for call in stack[-_NEAR:]]
        site = hashlib.sha256("\n".join((effect, *where)).encode()).hexdigest()[:10]
        point = f"{site}-{moment}"
        if self._only and point != self._only:
            return
        with _lock:
            if point in self._done or int(site, 16) % self._of != self._shard:
                return
            entry = {
                "point": point,
                "effect": effect,
                "kind": kind,
                "object": object_,
                "calling": self.calling,  # cannot change any more: that takes the lock
                "stack": stack,
            }
            line = (json.dumps(entry) + "\n").encode()
            descriptor = _open(self._done_file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
            _write(descriptor, line)
            _close(descriptor)
            _kill(os.getpid(), signal.SIGKILL)
            signal.pause()


def stack_of(frame: FrameType | None) -> tuple[str, ...]:
    """The agent's own functions and lines, outermost first; a function that calls itself is there once."""
    found: list[str] = []
    functions: list[object] = []
    while frame is not None:
        code = frame.f_code
        product = _PRODUCT.fullmatch(code.co_filename)
        if product is not None and code not in functions:
            found.append(f"{product[1]}:{code.co_qualname}:{frame.f_lineno}")
            functions.append(code)
        frame = frame.f_back
    return tuple(reversed(found))


class Wrapped:
    """Puts itself before functions that block."""

    def __init__(self, points: CrashPoints) -> None:
        self._points = points

    def install(self) -> None:
        named = (
            "mkdir",
            "rmdir",
            "unlink",
            "remove",
            "chmod",
            "chown",
            "lchown",
            "truncate",
            "utime",
            "mknod",
            "mkfifo",
        )
        for name in named:
            self._replace(os, name, lambda *a, **k: _full(a[0], k.get("dir_fd")))
        for name in ("rename", "replace", "link", "symlink"):
            self._replace(os, name, lambda *a, **k: _full(a[1], k.get("dst_dir_fd", k.get("dir_fd"))))
        for name in ("fsync", "fdatasync", "fchmod", "fchown", "ftruncate"):
            self._replace(os, name, lambda *a, **k: _name_of(a[0]))
        self._replace(os, "open", lambda *a, **k: _full(a[0], k.get("dir_fd")) if _creates(a, k) else None)
        self._replace(builtins, "open", lambda *a, **k: str(a[0]) if set("wax+") & set(_mode(a, k)) else None)
        self._replace(os, "write", lambda *a, **k: _written(a[0]), half=_half_written)
        self._replace(os, "kill", lambda *a, **k: "process" if a[1] else None)
        self._replace(fcntl, "ioctl", lambda *a, **k: _name_of(a[0]) if a[1] in _LOOP_CHANGES else None)

    def install_libc(self, libc: Any) -> None:
        self._replace(libc, "mount", lambda *a, **k: a[1])
        self._replace(libc, "umount", lambda *a, **k: a[0])

    def _replace(
        self, module: Any, name: str, object_of: Callable[..., str | None], half: Callable[..., None] | None = None
    ) -> None:
        real = getattr(module, name)

        def call(*arguments: Any, **named: Any) -> Any:
            stack = stack_of(sys._getframe(1)) if not getattr(_inside, "is_so", False) else ()
            if not stack:
                return real(*arguments, **named)
            _inside.is_so = True
            try:
                object_ = object_of(*arguments, **named)
                if object_ is None:
                    return real(*arguments, **named)
                kind = self._points.kind_of(object_)
                self._points.reach(BEFORE, name, kind, object_, stack)
                if half is not None:
                    half(real, self._points, kind, object_, stack, *arguments)
                result = real(*arguments, **named)
                self._points.reach(AFTER, name, kind, object_, stack)
                return result
            finally:
                _inside.is_so = False

        setattr(module, name, call)


def _half_written(
    real: Callable[[int, bytes], int], points: CrashPoints, kind: str, object_: str, stack: tuple[str, ...], *args: Any
) -> None:
    """Killed with half of the data in the file; control files of the kernel take all or nothing."""
    descriptor, data = args
    if object_.startswith(("/sys/", "/proc/")) or len(data) < 2:
        return
    start = os.lseek(descriptor, 0, os.SEEK_CUR)
    size = os.fstat(descriptor).st_size
    is_appending = bool(_flags(descriptor) & os.O_APPEND)
    saved = os.pread(descriptor, len(data), start) if not is_appending and _flags(descriptor) & os.O_RDWR else None
    if saved is None and not is_appending and start < size:
        return  # what is written over could not be put back
    real(descriptor, bytes(data[: len(data) // 2]))
    points.reach(HALF, "write", kind, object_, stack)
    _truncate(descriptor, size)
    if not is_appending:
        os.lseek(descriptor, start, os.SEEK_SET)


def _flags(descriptor: int) -> int:
    return fcntl.fcntl(descriptor, fcntl.F_GETFL)


def _full(path: Any, dir_fd: int | None) -> str:
    name = os.fsdecode(path) if not isinstance(path, int) else _name_of(path)
    return name if dir_fd is None else f"{_name_of(dir_fd)}/{name}"


def _name_of(descriptor: int) -> str:
    return os.readlink(f"/proc/self/fd/{descriptor}")


def _creates(arguments: tuple[Any, ...], named: dict[str, Any]) -> bool:
    flags = arguments[1] if len(arguments) > 1 else named.get("flags", 0)
    return bool(flags & (os.O_CREAT | os.O_TRUNC))


def _mode(arguments: tuple[Any, ...], named: dict[str, Any]) -> str:
    return str(arguments[1] if len(arguments) > 1 else named.get("mode", "r"))


def _written(descriptor: int) -> str | None:
    """The file; None for what is no file: pipes, sockets, and the agent's own output."""
    if descriptor <= 2 or not stat.S_ISREG(os.fstat(descriptor).st_mode):
        return None
    return _name_of(descriptor)


class Names:
    """The pod and the container behind an id, from the requests and answers that pass by."""

    def __init__(self) -> None:
        self._names: dict[str, str] = {}

    def of(self, request: Any) -> str:
        """`pod/container`, or `pod`, that a request is about; empty where it does not say so."""
        given = {field.name: value for field, value in request.ListFields()}
        config = given.get("config")
        if config is not None and "sandbox_config" in given:
            return f"{given['sandbox_config'].metadata.name}/{config.metadata.name}"
        if config is not None:
            return str(config.metadata.name)
        return next((self._names.get(given[key], "") for key in ("container_id", "pod_sandbox_id") if key in given), "")

    def learn(self, request: Any, answer: Any) -> None:
        """Remember the ids in an answer."""
        given = {field.name: value for field, value in answer.ListFields()}
        for key in ("container_id", "pod_sandbox_id"):
            if key in given:
                self._names[given[key]] = self.of(request)
        for entry in (*given.get("items", ()), *given.get("containers", ())):
            if hasattr(entry, "labels"):
                names = [entry.labels.get(f"io.kubernetes.{part}.name", "") for part in ("pod", "container")]
                self._names[entry.id] = "/".join(name for name in names if name)


def wrap_cri(points: CrashPoints, unary: Any) -> None:
    """Before, during and after every CRI call that changes something."""
    real, names = unary.__call__, Names()

    async def call(self: Any, request: Any, timeout_s: float | None) -> Any:
        name = self._name
        if _QUESTIONS.match(name):
            answer = await real(self, request, timeout_s)
            names.learn(request, answer)
            return answer
        stack, object_ = stack_of(sys._getframe(1)), names.of(request)
        points.reach(BEFORE, name, object_, object_, stack)
        over = [f"{name} {object_}", *([f"CreateContainer {object_}"] if name == "StartContainer" else [])]
        points.begin(f"{name} {object_}")
        task = asyncio.ensure_future(real(self, request, timeout_s))
        try:
            await asyncio.sleep(0.005)  # the request is written at the first step; the runtime has it now
            points.reach(SENT, name, object_, object_, stack)
            answer = await task
            if name == "CreateContainer":
                over = []  # the next agent creates another container, unless this one is started
        except BaseException:
            task.cancel()
            raise
        finally:
            points.end(*over)
        names.learn(request, answer)
        points.reach(AFTER, name, object_, object_, stack)
        return answer

    unary.__call__ = call


def wrap_csi(points: CrashPoints, node: Any) -> None:
    """Before, during and after every call of a CSI driver that changes something."""
    real = node._call

    async def call(self: Any, name: str, request: Any, answer: Any) -> Any:
        if name.startswith("NodeGet"):
            return await real(self, name, request, answer)
        stack = stack_of(sys._getframe(1))
        return await _sent(points, name, request.volume_id, stack, real(self, name, request, answer))

    node._call = call


def wrap_api(points: CrashPoints, client: Any) -> None:
    """Before, during and after every patch of an object of the API server."""
    real = client.patch

    async def patch(self: Any, path: str, *arguments: Any, **named: Any) -> Any:
        stack = stack_of(sys._getframe(1))
        return await _sent(points, "patch", path, stack, real(self, path, *arguments, **named))

    client.patch = patch


async def _sent(
    points: CrashPoints, name: str, object_: str, stack: tuple[str, ...], sending: Coroutine[Any, Any, T]
) -> T:
    """The answer to a request that is about `object_`. The agent may be killed before, during and after it."""
    points.reach(BEFORE, name, "", object_, stack)
    task = asyncio.ensure_future(sending)
    try:
        await asyncio.sleep(0.005)  # the request is written at the first step; the other side has it now
        points.reach(SENT, name, "", object_, stack)
        result = await task
    except BaseException:
        task.cancel()
        raise
    points.reach(AFTER, name, "", object_, stack)
    return result


def main() -> int:
    points = CrashPoints(dict(os.environ))
    wrapped = Wrapped(points)
    wrapped.install()
    from pykubelet.app.cli import main as agent
    from pykubelet.edges.cri.wire import Unary
    from pykubelet.edges.csi.node import CsiNode
    from pykubelet.edges.host.fs import libc
    from pykubelet.edges.kubeapi.client import ApiClient

    wrapped.install_libc(libc)
    wrap_cri(points, Unary)
    wrap_csi(points, CsiNode)
    wrap_api(points, ApiClient)
    return agent()


if __name__ == "__main__":
    sys.exit(main())
