"""One of two API servers that get the same requests: sends them, and makes their answers comparable."""

from __future__ import annotations

import asyncio
import http.client
import re
import ssl
import threading
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec
from local_api.server import account_made, serving

from pykubelet.base.kit.values import Value
from pykubelet.edges.kubeapi.kubeconfig import load_access
from pykubelet_local_api.objects import Json

WITHIN_S = 60.0
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z")
_AGE = re.compile(r"^(\d+[smhd])+$")
_UID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_NUMBER = re.compile(r"\b\d{2,}\b")
_OLDEST = re.compile(
    r"(too old resource version: [-\w]+|list is too old: [-\w]+|Too large resource version: \d+, current:) \(?[-\w]+\)?"
)
_PATCHED = re.compile(r'(Invalid value): "\{\\.*\}": (.*)', re.DOTALL)
_MEDIA_TYPES = re.compile(r"(media types are accepted|Available representations): .*")


class Step(Value):
    """One request. `{ns}` in path and body is the namespace of the test; `{NAME_rv}`, `{NAME_token}` and `{NAME_uid}` are those of the
    answer to the step that was saved as NAME. `lines`: the answer is a watch, whose lines are compared.
    """

    method: str
    path: str
    body: Any = None
    accept: str = "application/json"
    content_type: str = "application/json"
    save: str = ""
    lines: bool = False
    headers: tuple[tuple[str, str], ...] = ()

    def __str__(self) -> str:
        return f"{self.method} {self.path} {self.body if self.body is not None else ''} {self.accept}"


class ReadAnswer(Value):
    """What an API server answered."""

    code: int
    headers: Mapping[str, str]
    data: bytes


class Side:
    """An API server, as its administrator sees it. `saved`: what later steps name."""

    def __init__(self, kubeconfig: str, namespace: str) -> None:
        access = load_access(kubeconfig)
        self._host = urlsplit(access.server)
        self._tls = tls_of(Path(kubeconfig))
        self.saved: dict[str, str] = {"ns": namespace}
        self._names: dict[str, str] = {}
        self._last = "0"
        self._uids: dict[str, str] = {}

    def send(self, step: Step) -> ReadAnswer:
        """Send one request and read the whole answer."""
        path = self._filled(step.path)
        body = step.body
        if body is not None and not isinstance(body, bytes):
            body = self._filled(msgspec.json.encode(body).decode()).encode()
        connection = http.client.HTTPSConnection(
            self._host.hostname or "", self._host.port, context=self._tls, timeout=WITHIN_S
        )
        headers = {"Accept": step.accept, **({"Content-Type": step.content_type} if body is not None else {})}
        try:
            connection.request(step.method, path, body, headers | dict(step.headers))
            answer = connection.getresponse()
            found = ReadAnswer(answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read())
        finally:
            connection.close()
        self._remember(step, found)
        return found

    def _filled(self, text: str) -> str:
        for name, value in self.saved.items():
            text = text.replace(f"{{{name}}}", value)
        return text

    def _remember(self, step: Step, found: ReadAnswer) -> None:
        if not step.save:
            return
        body = msgspec.json.decode(found.data)
        meta = body.get("metadata") or {}
        for key, name in (("resourceVersion", "rv"), ("continue", "token"), ("uid", "uid")):
            if key in meta:
                self.saved[f"{step.save}_{name}"] = str(meta[key])
        if "resourceVersion" in meta:
            self._names.setdefault(str(meta["resourceVersion"]), f"rv-{step.save}")
        self.saved.setdefault(f"{step.save}_rv", self._last)  # of a write that was refused
        self._last = self.saved[f"{step.save}_rv"]
        if "uid" in meta:
            self._uids.setdefault(str(meta["uid"]), f"uid-{step.save}")

    def comparable(self, step: Step, found: ReadAnswer) -> Json:
        """What both servers must have alike."""
        headers = {name: found.headers.get(name, "") for name in ("content-type", "retry-after", "warning")}
        if step.lines and found.code == 200:
            lines = [line for line in map(self._shown, found.data.splitlines()) if not _is_plain_bookmark(line)]
            return {"code": found.code, "headers": headers, "lines": lines}
        try:
            body = self._shown(found.data)
        except msgspec.DecodeError:
            body = self._text(found.data.decode(errors="replace"))
        return {"code": found.code, "headers": headers, "body": body}

    def _shown(self, data: bytes) -> Any:
        return self._normal(msgspec.json.decode(data))

    def _normal(self, value: Any) -> Any:
        """Without what is compared elsewhere, or what each server makes up."""
        if isinstance(value, str):
            return self._text(value)
        if isinstance(value, list):
            return [self._normal(item) for item in value]
        if not isinstance(value, dict):
            return value
        found = {key: self._normal(item) for key, item in sorted(value.items()) if key != "managedFields"}
        version = str(value.get("resourceVersion") or "")
        if version.isdigit():
            found["resourceVersion"] = self._names.get(version, "N")
        if found.get("continue"):
            found["continue"] = "TOKEN"
        if "ca.crt" in found:
            found["ca.crt"] = "CA"
        if "generateName" in found and "name" in found:
            found["name"] = found["generateName"] + "-RANDOM"
        if isinstance(found.get("causes"), list):  # one for each time that the object was validated
            found["causes"] = [item for at, item in enumerate(found["causes"]) if item not in found["causes"][:at]]
        if "items" in found or "rows" in found:
            found["metadata"].pop("resourceVersion", None)
        if found.get("columnDefinitions"):
            found["columnDefinitions"] = [item["name"] for item in found["columnDefinitions"]]
        if isinstance(found.get("cells"), list):
            found["cells"] = [_AGE.sub("AGE", cell) if isinstance(cell, str) else cell for cell in found["cells"]]
        return found

    def _text(self, text: str) -> str:
        text = text.replace(self.saved["ns"], "NS")
        text = _UID.sub(lambda match: self._uids.get(match[0], "UID"), _TIME.sub("TIME", text))
        text = _PATCHED.sub(r"\1: OBJECT: \2", text)
        text = _MEDIA_TYPES.sub(r"\1: TYPES", text)
        if "version" in text or "Version" in text:
            text = _OLDEST.sub(r"\1 OLDEST", _NUMBER.sub(lambda match: self._names.get(match[0], match[0]), text))
        return text


def differences(real: Any, own: Any, path: str = "") -> list[str]:
    """The places that differ, for a message."""
    if isinstance(real, dict) and isinstance(own, dict):
        keys = sorted(real.keys() | own.keys())
        return [line for key in keys for line in differences(real.get(key), own.get(key), f"{path}.{key}")]
    if isinstance(real, list) and isinstance(own, list):
        found = [
            line for at, pair in enumerate(zip(real, own, strict=False)) for line in differences(*pair, f"{path}[{at}]")
        ]
        more = (f"  {path} more: real {real[len(own) :]}", f"  {path} more: own  {own[len(real) :]}")
        return [*found, *more[len(real) <= len(own) :][:1]] if len(real) != len(own) else found
    return [] if real == own else [f"  {path} real {real}", f"  {path} own  {own}"]


def compare_all(real: Side, own: Side, steps: Iterable[Step]) -> Iterator[str]:
    """Send all requests to both, those that change nothing and are not saved side by side; a text for each answer that differs."""
    with ThreadPoolExecutor(8) as pool:
        reads: list[Future[list[str]]] = []
        for step in steps:
            if step.method == "GET" and not step.save:
                reads.append(pool.submit(compare, real, own, step))
                continue
            yield from ("\n".join(read.result()) for read in reads if read.result())
            reads.clear()
            if lines := compare(real, own, step):
                yield "\n".join(lines)
        yield from ("\n".join(read.result()) for read in reads if read.result())


def compare(real: Side, own: Side, step: Step) -> list[str]:
    """Send one request to both; the lines that differ."""
    first, second = (side.comparable(step, side.send(step)) for side in (real, own))
    if first["code"] != second["code"]:  # the message is enough then
        first, second = ({"code": shown["code"], "message": _message(shown)} for shown in (first, second))
    found = differences(first, second)
    return [str(step), *found] if found else []


def _is_plain_bookmark(line: Json) -> bool:
    """Whether a line is a bookmark that may come at any time."""
    if line.get("type") != "BOOKMARK":
        return False
    found = line["object"]
    rows = found.get("rows") or [{"object": found}]
    return not rows[0]["object"]["metadata"].get("annotations")


def _message(found: Json) -> str:
    body = found.get("body") or found.get("lines")
    return str(body.get("message", body) if isinstance(body, dict) else body)


def tls_of(kubeconfig: Path) -> ssl.SSLContext:
    """TLS with the certificates that a kubeconfig file names."""
    import base64
    import tempfile

    import yaml

    content = yaml.safe_load(kubeconfig.read_text())
    cluster, user = content["clusters"][0]["cluster"], content["users"][0]["user"]
    with tempfile.TemporaryDirectory() as folder:

        def file(part: Json, name: str) -> str:
            if name in part:
                return str(part[name])
            path = Path(folder, name)
            path.write_bytes(base64.b64decode(part[f"{name}-data"]))
            return str(path)

        context = ssl.create_default_context(cafile=file(cluster, "certificate-authority"))
        context.load_cert_chain(file(user, "client-certificate"), file(user, "client-key"))
    return context


@contextmanager
def local_api(folder: Path) -> Iterator[str]:
    """A local API that runs in a thread; the path of its administrator's kubeconfig file."""
    started: Future[str] = Future()
    stop = asyncio.Event()
    loops: list[asyncio.AbstractEventLoop] = []

    async def serve() -> None:
        loops.append(asyncio.get_running_loop())
        async with serving(folder) as api:
            await account_made(api)
            started.set_result(api.kubeconfig)
            await stop.wait()

    thread = threading.Thread(target=lambda: asyncio.run(serve()), daemon=True)
    thread.start()
    try:
        yield started.result(WITHIN_S)
    finally:
        loops[0].call_soon_threadsafe(stop.set)
        thread.join(WITHIN_S)
