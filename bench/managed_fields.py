"""`python -m bench.managed_fields`: what `metadata.managedFields` of pods costs an agent that watches them, and what is saved without.

A process sends a list of pods and then changes of them, as an API server does. The agent's client asks for answers without
managedFields or not, in a process of its own for each measurement. The variants alternate.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import aclosing
from functools import cache
from pathlib import Path
from statistics import median
from typing import Any

from pykubelet.base.api.core import Pod
from pykubelet.base.kit.clock import SystemClock
from pykubelet.edges.kubeapi.client import ApiClient, ClientLimits
from pykubelet.edges.kubeapi.kubeconfig import ClusterAccess
from pykubelet.edges.kubeapi.listwatch import follow

PODS, CHANGES, ROUNDS = 110, 2_000, 5
#: Bytes of managedFields of a pod: a Deployment's with its status, and one that several controllers write.
SIZES = (3_000, 30_000)


def pod(number: int, version: int, size: int) -> dict[str, Any]:
    """A pod with two containers as an API server sends it. `size`: bytes of managedFields; 0: none."""
    container = {
        "image": "registry.example/app:1",
        "env": [{"name": f"VARIABLE_{i}", "value": f"value {i}"} for i in range(8)],
        "resources": {"limits": {"cpu": "500m", "memory": "256Mi"}, "requests": {"cpu": "250m", "memory": "128Mi"}},
        "readinessProbe": {"httpGet": {"path": "/ready", "port": 8080}, "periodSeconds": 10, "failureThreshold": 3},
        "volumeMounts": [{"name": "config", "mountPath": "/config"}, {"name": "data", "mountPath": "/data"}],
    }
    spec = {
        "nodeName": "n",
        "containers": [{**container, "name": name} for name in ("app", "proxy")],
        "volumes": [{"name": "config", "configMap": {"name": "config"}}, {"name": "data", "emptyDir": {}}],
    }
    condition = {"status": "True", "lastProbeTime": None, "lastTransitionTime": "2026-11-29T10:00:00Z"}
    status = {
        "phase": "Running",
        "podIP": "10.0.0.1",
        "conditions": [
            {"type": kind, **condition} for kind in ("PodScheduled", "Initialized", "ContainersReady", "Ready")
        ],
    }
    metadata: dict[str, Any] = {"name": f"pod-{number}", "namespace": "default", "uid": f"uid-{number}"}
    metadata |= {"resourceVersion": str(version), "labels": {"app": "app"}, "annotations": {"version": str(version)}}
    if size:
        metadata["managedFields"] = managed_fields(size)
    return {"metadata": metadata, "spec": spec, "status": status}


@cache
def managed_fields(size: int) -> list[dict[str, Any]]:
    """Entries of about `size` bytes, as server-side apply records them."""
    entry: dict[str, Any] = {"manager": "kube-controller-manager", "operation": "Update", "apiVersion": "v1"}
    fields: dict[str, Any] = {}
    while 100 * len(fields) < size:  # an entry has about 100 bytes
        key = f'k:{{"name":"VARIABLE_{len(fields)}"}}'
        fields[key] = {".": {}, "f:name": {}, "f:valueFrom": {".": {}, "f:configMapKeyRef": {}}}
    return [{**entry, "time": "2026-11-29T10:00:00Z", "fieldsType": "FieldsV1", "fieldsV1": {"f:spec": fields}}]


async def serve(size: int, changes: int) -> None:
    """Listen on loopback, print the port, and answer one list and one watch."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while head := await _head(reader):
            kept = 0 if b"drop=metadata.managedFields" in head else size
            if b"watch=true" not in head:
                items = [pod(number, 1, kept) for number in range(PODS)]
                body = _compact({"kind": "PodList", "metadata": {"resourceVersion": "1"}, "items": items})
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
                continue
            writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
            for number in range(changes):
                event = {"type": "MODIFIED", "object": pod(number % PODS, number + 2, kept)}
                line = _compact(event) + b"\n"
                writer.write(b"%x\r\n%s\r\n" % (len(line), line))
                await writer.drain()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


def _compact(value: object) -> bytes:
    """JSON without spaces, as API servers write it."""
    return json.dumps(value, separators=(",", ":")).encode()


async def _head(reader: asyncio.StreamReader) -> bytes:
    """The head of the next request; empty at the end."""
    with contextlib.suppress(asyncio.IncompleteReadError):
        return await reader.readuntil(b"\r\n\r\n")
    return b""


async def watch(port: int, changes: int, *, drops: bool) -> dict[str, float]:
    """Follow the pods until the last change; CPU time and bytes of memory that this took."""
    access = ClusterAccess(server=f"http://127.0.0.1:{port}")
    client = ApiClient(access, SystemClock(), ClientLimits(qps=0), drops_managed_fields=drops)
    before_kib = _begin_peak()
    began = time.process_time()
    last = str(changes - 1 + 2)
    async with aclosing(follow(client, "/api/v1/pods", Pod, SystemClock())) as listing:
        async for listed in listing:
            if listed.synced and not listed.error:
                listed_s = time.process_time() - began
                break
        async for listed in listing:
            if any(item.metadata.resourceVersion == last for item in listed.items.values()):
                break
    took_s = time.process_time() - began
    await client.close()
    return {
        "list ms": listed_s * 1e3,
        "change us": (took_s - listed_s) / changes * 1e6,
        "peak KiB": _memory("VmHWM") - before_kib,
        "kept KiB": _memory("VmRSS") - before_kib,
    }


def _begin_peak() -> int:
    """Let the peak of memory begin here; the KiB in use."""
    Path("/proc/self/clear_refs").write_text("5")
    return _memory("VmRSS")


def _memory(field: str) -> int:
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(field))
    return int(line.split()[1])


def _measure(size: int, changes: int, drops: bool) -> dict[str, float]:
    command = [sys.executable, "-m", "bench.managed_fields", "--size", str(size), "--changes", str(changes)]
    with subprocess.Popen([*command, "--serve"], stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            port = server.stdout.readline().strip()
            asking = [*command, "--port", port, *(["--drop"] if drops else [])]
            done = subprocess.run(asking, stdout=subprocess.PIPE, text=True, check=True, env=os.environ)
            return dict(json.loads(done.stdout))
        finally:
            server.terminate()


def compare(sizes: Sequence[int], changes: int, rounds: int) -> list[str]:
    """The lines of a table: the median of each variant and size."""
    lines = [f"{PODS} pods, then {changes} changes; medians of {rounds}"]
    for size in sizes:
        samples: dict[bool, list[dict[str, float]]] = {False: [], True: []}
        for number in range(rounds):
            for drops in (False, True) if number % 2 else (True, False):
                samples[drops].append(_measure(size, changes, drops))
        for drops, found in samples.items():
            values = {name: median(sample[name] for sample in found) for name in found[0]}
            shown = "  ".join(f"{name} {value:8.1f}" for name, value in values.items())
            lines.append(f"{size:6} B of managedFields, {'left out' if drops else 'received'}:  {shown}")
    return lines


def main() -> None:
    """Print the table, or be one of its processes."""
    parser = argparse.ArgumentParser(prog="bench.managed_fields")
    parser.add_argument("--size", type=int, default=0, help="bytes of managedFields of each pod")
    parser.add_argument("--changes", type=int, default=CHANGES)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--drop", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        asyncio.run(serve(options.size, options.changes))
    elif options.port:
        print(json.dumps(asyncio.run(watch(options.port, options.changes, drops=options.drop))))
    else:
        print(*compare((options.size,) if options.size else SIZES, options.changes, options.rounds), sep="\n")


if __name__ == "__main__":
    main()
