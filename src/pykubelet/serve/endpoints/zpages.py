"""`/flagz` and `/statusz`: text for users, or JSON or YAML in the version that a program requests with Accept.

Owns: the formats and their negotiation. Pure except for the clock. Source: KEP-4828, KEP-4827; the Kubernetes documentation
"Kubernetes z-pages".
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from typing import Any

from pykubelet.base.api.times import format_time
from pykubelet.base.kit.clock import Clock
from pykubelet.base.kit.values import Value
from pykubelet.net.http.server import JSON, TEXT, Answer, Request, Response, text

GROUP, NAME = "config.k8s.io", "kubelet"
NEWEST, OLD = "v1beta1", "v1alpha1"
YAML = "application/yaml"
WARNING = (
    "Warning: This endpoint is not meant to be machine parseable, has no formatting compatibility guarantees and is for "
    "debugging purposes only."
)
_STRUCTURED = {JSON: JSON, YAML: YAML, "application/*": JSON}
_TEXT = ("text/plain", "text/*", "*/*")


class ZPageFormat(Value):
    """The format of an answer. `version` "": text."""

    content_type: str = TEXT
    version: str = ""


class KubeletInfo(Value):
    """The given flags by name, the versions, the start of the agent (wall seconds), and the paths of the port.

    `version`: that of Kubernetes, `v1.x.y`. `release`: the one that the agent is (`--emulated-version`).
    """

    flags: Mapping[str, str]
    version: str
    release: str
    started_at: float
    paths: tuple[str, ...]


def negotiate_format(accept: str, kind: str) -> ZPageFormat | None:
    """The first accepted format that exists; None if there is none."""
    for media_range in accept.split(",") if accept.strip() else ("*/*",):
        media, *rest = (part.strip() for part in media_range.split(";"))
        params = dict(part.split("=", 1) for part in rest if "=" in part)
        if params.get("q") in ("0", "0.0"):
            continue
        if media in _TEXT and params.get("as") is None:
            return ZPageFormat()
        version = params.get("v", "")
        is_kind = params.get("g") == GROUP and params.get("as") == kind and version in (NEWEST, OLD)
        if media in _STRUCTURED and is_kind:
            return ZPageFormat(_STRUCTURED[media], version)
    return None


class ZPages:
    """The handlers of `/flagz` and `/statusz`."""

    def __init__(self, info: KubeletInfo, clock: Clock) -> None:
        self._info = info
        self._clock = clock

    async def flagz(self, request: Request) -> Answer:
        """`/flagz`: the flags by name (KEP-4828). 406 if no accepted format exists."""
        flags = dict(sorted(self._info.flags.items()))
        lines = [f"{name}={value}" for name, value in flags.items()]
        return _answer(request, "Flagz", ("", "kubelet flagz", WARNING, "", *lines), {"flags": flags})

    async def statusz(self, request: Request) -> Answer:
        """`/statusz`: start time, versions and paths (KEP-4827). 406 if no accepted format exists."""
        info = self._info
        up = int(self._clock.wall() - info.started_at)
        version = info.version.removeprefix("v")
        fields = {
            "startTime": format_time(info.started_at),
            "uptimeSeconds": up,
            "goVersion": f"python{sys.version.split()[0]}",
            "binaryVersion": version,
            "emulationVersion": info.release,
            "paths": list(info.paths),
        }
        lines = (
            *("", "kubelet statusz", WARNING, ""),
            f"Started: {fields['startTime']}",
            f"Up: {up // 3600} hr {up // 60 % 60:02d} min {up % 60:02d} sec",
            f"Go version: {fields['goVersion']}",
            f"Binary version: {version}",
            f"Emulation version: {fields['emulationVersion']}",
            f"Paths: {' '.join(info.paths)}",
        )
        return _answer(request, "Statusz", lines, fields)


def _answer(request: Request, kind: str, lines: tuple[str, ...], fields: Mapping[str, Any]) -> Response:
    form = negotiate_format(request.headers.get("accept", ""), kind)
    if form is None:
        forms = f"text/plain, or {JSON} or {YAML} with ;v={NEWEST};g={GROUP};as={kind}"
        return text(406, f"406 Not Acceptable: there are {forms}\n")
    if not form.version:
        return text(200, "\n".join(lines) + "\n")
    document = {"kind": kind, "apiVersion": f"{GROUP}/{form.version}", "metadata": {"name": NAME}, **fields}
    headers = {}
    if form.version == OLD:
        newest = f"use {GROUP}/{NEWEST} {kind}"
        headers["Warning"] = f'299 - "{GROUP}/{OLD} {kind} is deprecated, {newest}"'
    return Response(200, _rendered(document, form.content_type), form.content_type, headers)


def _rendered(document: Mapping[str, Any], content_type: str) -> bytes:
    if content_type == JSON:
        return json.dumps(document).encode()
    import yaml  # rarely used

    rendered: str = yaml.safe_dump(dict(document), sort_keys=False)
    return rendered.encode()
