"""A cluster as its users see it: the official client and kubectl, never the agent's own client.

Objects are JSON as the API server sent them. Waiting is by watch, so a moment that passes quickly is seen, too.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from kubernetes import client, config, watch
from support.agent import NODE_NAME, Agent, Json, NotYet, RuntimeView, condition, is_ready, make_pod
from testbed import controlplane, host, node
from testbed.controlplane import ControlPlane
from testbed.controlplane_flags import FIRST_WITH_POD_CERTIFICATES
from testbed.controlplane_programs import VARIABLE
from testbed.host import TestbedError
from testbed.node import Joined

WITHIN_S = 60.0 * host.SLOWNESS
#: Between two looks, which cost more where everything is slow.
STEP_S = 0.02 * host.SLOWNESS**2


def up_or_anew(folder: Path) -> ControlPlane:
    """The control plane of a folder; a new one in place of one that does not come up. Raises TestbedError."""
    try:
        return controlplane.up(folder)
    except TestbedError as error:
        print(f"a new control plane replaces one that does not come up: {error}")
    node.down(folder)
    return controlplane.up(folder)


def certificates_version(plane: ControlPlane) -> str:
    """The version of the API in which a control plane has certificates for pods. A test of one without is skipped."""
    if plane.programs.minor < FIRST_WITH_POD_CERTIFICATES:
        pytest.skip(f"the control plane is older than 1.{FIRST_WITH_POD_CERTIFICATES}: {VARIABLE} names no newer one")
    return "v1beta1" if plane.programs.minor == FIRST_WITH_POD_CERTIFICATES else "v1"


class Cluster:
    """The administrator's view. `namespace` is the one that a test has for itself."""

    def __init__(self, plane: ControlPlane, namespace: str = "default") -> None:
        self.plane = plane
        self.namespace = namespace
        self.client: client.ApiClient = config.new_client_from_config(str(plane.admin))
        self.core = client.CoreV1Api(self.client)
        self.agents: list[Agent] = []

    def close(self) -> None:
        self.client.close()

    def clear(self) -> None:
        """For the end of a test that may have failed: no pod is left anywhere, and the namespace goes."""
        for pod in self.list_objects("/api/v1/pods"):
            meta = pod["metadata"]
            self.delete(f"/api/v1/namespaces/{meta['namespace']}/pods/{meta['name']}", grace_s=0)
        self.delete(f"/api/v1/namespaces/{self.namespace}")
        self.close()

    def kubectl(self, *words: str, stdin: str = "", timeout_s: float = 30 * host.SLOWNESS) -> str:
        """The output of kubectl in the namespace; a failure fails the test."""
        plane = self.plane
        argv = [plane.programs.kubectl, "--kubeconfig", str(plane.admin), "--namespace", self.namespace, *words]
        done = subprocess.run(argv, input=stdin, capture_output=True, text=True, timeout=timeout_s)
        assert done.returncode == 0, f"kubectl {' '.join(words)}: {done.stderr}"
        return done.stdout

    # Objects, as JSON

    def get(self, path: str) -> Json | None:
        """What is at an API path, None if nothing is."""
        try:
            return self._call("GET", path)
        except client.ApiException as error:
            if error.status == 404:
                return None
            raise

    def list_objects(self, path: str) -> list[Json]:
        return list(self._call("GET", path)["items"])

    def create(self, path: str, body: Json) -> Json:
        return self._call("POST", path, body)

    def patch(self, path: str, body: Json) -> Json:
        return self._call("PATCH", path, body, "application/merge-patch+json")

    def delete(self, path: str, grace_s: int | None = None) -> None:
        """Delete; nothing happens when nothing is there."""
        options = {} if grace_s is None else {"gracePeriodSeconds": grace_s}
        try:
            self._call("DELETE", path, options)
        except client.ApiException as error:
            if error.status != 404:
                raise

    def _call(self, method: str, path: str, body: Json | None = None, kind: str = "application/json") -> Json:
        headers = {"Content-Type": kind, "Accept": "application/json"}
        response = self.client.call_api(method, self.plane.server + path, headers, body, _request_timeout=WITHIN_S)
        response.read()
        if not 200 <= response.status < 300:
            raise client.ApiException(http_resp=response)
        return dict(json.loads(response.data or b""))

    def read(self, path: str, accept: str = "application/json") -> bytes:
        """What is at an API path, as the server sends it."""
        url = self.plane.server + path
        response = self.client.call_api("GET", url, {"Accept": accept}, None, _request_timeout=WITHIN_S)
        return bytes(response.read())

    # Pods

    @property
    def pods_path(self) -> str:
        return f"/api/v1/namespaces/{self.namespace}/pods"

    def pod(self, name: str) -> Json | None:
        return self.get(f"{self.pods_path}/{name}")

    def run(self, *pods: Json, node: str = NODE_NAME) -> list[Json]:
        """Create pods bound to the node."""
        return [self.create(self.pods_path, bound(pod, node)) for pod in pods]

    def delete_pod(self, name: str, grace_s: int | None = None) -> None:
        self.delete(f"{self.pods_path}/{name}", grace_s)

    def wait_pod(self, name: str, what: str, holds: Callable[[Json], Any], within: float = WITHIN_S) -> Json:
        """The pod as soon as `holds` is true."""
        seen: Json = {}
        for kind, pod in self.watch_pods(f"metadata.name={name}", within):
            seen = pod
            if kind != "DELETED" and holds(pod):
                return pod
        status = json.dumps(seen.get("status"), indent=1)
        raise NotYet(f"{name}: not within {within} s: {what}\nlast status: {status}\n{self.account(name)}")

    def wait_ready(self, *names: str, within: float = WITHIN_S) -> list[Json]:
        """All containers of these pods run, are ready, and the pods' condition Ready is True."""

        def ready(pod: Json) -> bool:
            return is_ready(pod) and condition(pod, "Ready") == "True"

        return [self.wait_pod(name, "running and ready", ready, within) for name in names]

    def delete_and_watch(self, name: str, within: float = WITHIN_S) -> list[Json]:
        """The events of a pod from its deletion to its end; the watch is there before, so nothing is missed."""
        seen: list[Json] = []
        for kind, pod in self.watch_pods(f"metadata.name={name}", within):
            if not seen:
                self.delete_pod(name)
            seen.append(pod)
            if kind == "DELETED":
                return seen
        raise NotYet(f"{name}: not gone within {within} s: {self.pod(name)}\n{self.account(name)}")

    def wait_gone(self, name: str, within: float = WITHIN_S) -> None:
        """The pod's object exists no more; asked for again and again, because a late watch gets no event."""
        try:
            self.wait(f"{name} gone", lambda: self.pod(name) is None, within)
        except NotYet as error:
            raise NotYet(f"{error}\n{self.pod(name)}\n{self.account(name)}") from None

    def watch_pods(self, fields: str, within: float) -> Iterator[tuple[str, Json]]:
        """(ADDED, MODIFIED or DELETED; the pod) for what is there and what happens, until time is up."""
        yield from self._watch(self.core.list_namespaced_pod, (self.namespace,), fields, within)

    def watch_node(self, name: str, within: float) -> Iterator[tuple[str, Json]]:
        """The same of a node."""
        yield from self._watch(self.core.list_node, (), f"metadata.name={name}", within)

    def _watch(
        self, listing: Callable[..., Any], arguments: tuple[str, ...], fields: str, within: float
    ) -> Iterator[tuple[str, Json]]:
        deadline = time.monotonic() + within
        while (left := deadline - time.monotonic()) > 0:
            stream = watch.Watch()
            options = {"field_selector": fields, "timeout_seconds": max(1, int(left)), "_request_timeout": left + 10}
            options["resource_version"] = "0"  # from the server's cache: with an old etcd it may lag behind for ever
            try:
                for event in stream.stream(listing, *arguments, **options):
                    yield event["type"], event["raw_object"]
                    if time.monotonic() > deadline:
                        stream.stop()
            except client.ApiException as error:
                if error.status not in (410, 504):  # too old, or newer than the server's cache: look again
                    raise

    # The node

    def node(self, name: str = NODE_NAME) -> Json | None:
        return self.get(f"/api/v1/nodes/{name}")

    def wait(self, what: str, condition: Callable[[], Any], within: float = WITHIN_S) -> Any:
        """The first true result of `condition`."""
        deadline = time.monotonic() + within
        while not (result := condition()):
            if time.monotonic() > deadline:
                raise NotYet(f"not within {within} s: {what}\n{self.account()}")
            time.sleep(STEP_S)
        return result

    def wait_node_ready(self, name: str = NODE_NAME, within: float = WITHIN_S) -> Json:
        def ready() -> Json | None:
            node = self.node(name)
            return node if node is not None and node_condition(node, "Ready") == "True" else None

        return dict(self.wait(f"node {name} Ready", ready, within))

    def events(self, name: str) -> list[Json]:
        """The Events about an object of this name, oldest first."""
        found = self.list_objects(
            f"/api/v1/namespaces/{self.namespace}/events?fieldSelector=involvedObject.name%3D{name}"
        )
        return sorted(found, key=lambda event: event.get("lastTimestamp") or event["metadata"]["creationTimestamp"])

    def account(self, pod: str = "") -> str:
        """What the agents say of themselves, and of a pod, for the message of a failure."""
        output = []
        for agent in self.agents:
            output += [agent.ask("explain", pod).stdout] if pod and agent.alive else []
            output.append(agent.log_tail(60))
        return "\n".join(output)


def bound(pod: Json, node: str = NODE_NAME) -> Json:
    """The pod with its node chosen, as a scheduler leaves it."""
    return pod | {"spec": pod["spec"] | {"nodeName": node}}


def make_bound_pod(name: str, *containers: Json, node: str = NODE_NAME, **spec: Any) -> Json:
    return bound(make_pod(name, *containers, **spec), node)


def node_condition(node: Json, kind: str) -> str:
    """The status of a node's condition; empty when it is not there."""
    return next((str(c["status"]) for c in node["status"].get("conditions", []) if c["type"] == kind), "")


def make_namespace(cluster: Cluster, name: str) -> Cluster:
    """A namespace of its own for a test, ready to take pods."""
    if cluster.get(f"/api/v1/namespaces/{name}") is None:
        cluster.create("/api/v1/namespaces", {"metadata": {"name": name}})
    controlplane.wait_namespace(cluster.plane, name)
    return Cluster(cluster.plane, name)


def joined(plane: ControlPlane, settings: Mapping[str, object]) -> tuple[dict[str, object], tuple[str, ...]]:
    """The settings and flags of an agent that is the node NODE_NAME of the cluster."""
    node = Joined(controlplane.node_kubeconfig(plane, NODE_NAME), plane.authority)
    return node.settings() | dict(settings), ("--kubeconfig", str(node.kubeconfig))


def look(agent: Agent) -> RuntimeView:
    """The runtime's own lists, now."""
    with asyncio.Runner() as runner:
        return runner.run(agent.look())
