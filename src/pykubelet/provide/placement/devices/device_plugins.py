"""The plugins of this node's devices: they register here, list their devices, and are called about them.

Owns: one connection for each resource, and what the plugins have listed. A plugin registers by the agent's socket or through
the plugin watcher (`Plugins`). It is not tried again when its list ends: its devices are unhealthy then, and the resource is
removed if no plugin registers it again within `GRACE_S`.

A list costs time to parse, in a worker thread. The next one is read ten times as long afterwards, so that a plugin that sends
lists without pause cannot keep the machine busy.
Source: the Kubernetes documentation "Device Plugins"; KEP-595 (plugin watcher).
"""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Collection
from functools import partial

from msgspec import Struct

from pykubelet.base.api.quantity import is_extended
from pykubelet.base.kit.backoff import BackoffPolicy
from pykubelet.base.kit.bucket import TokenBucket
from pykubelet.base.kit.cells import Cell
from pykubelet.base.kit.clock import Clock
from pykubelet.base.kit.flight import Done, Failed, SingleFlight
from pykubelet.base.kit.log import Log
from pykubelet.base.kit.metrics import Counter, Histogram
from pykubelet.base.kit.supervise import Supervisor
from pykubelet.base.kit.text import shorten
from pykubelet.base.kit.values import Value, replace
from pykubelet.base.model.observed import Observed
from pykubelet.base.model.placement import AssignedDevices, DeviceResource
from pykubelet.base.model.plugins import Plugin, Plugins, PluginType
from pykubelet.edges.plugins.device_messages import read_devices
from pykubelet.edges.plugins.device_plugin import (
    REGISTER,
    DevicePluginClient,
    PluginOptions,
    read_registration,
    registered,
)
from pykubelet.net.grpc.server import CallLimit
from pykubelet.net.grpc.services import Method
from pykubelet.net.grpc.status import Code, RpcError
from pykubelet.provide.placement.devices.device_files import DeviceFiles
from pykubelet.provide.placement.devices.device_manager import AllocateCall, DeviceManager
from pykubelet.provide.placement.provider import AllocationError, PreferredAllocationRequest

REGISTRATIONS = Counter(
    "kubelet_device_plugin_registration_total",
    "Cumulative number of device plugin registrations. Broken down by resource name.",
    ("resource_name",),
)
ALLOCATIONS = Histogram(
    "kubelet_device_plugin_alloc_duration_seconds",
    "Duration in seconds to serve a device plugin Allocation request. Broken down by resource name.",
    ("resource_name",),
)


log = Log("device-plugins")
VERSIONS = ("v1beta1",)
MAX_RESOURCES = 64
#: Calls of `Register` a second. All plugins may register at once, as they do when the agent has started.
REGISTRATIONS_PER_S = 10.0
#: Seconds for each refused registration in the log, and how many may be logged at once.
LOGGED_EVERY_S, LOGGED_AT_ONCE = 10.0, 16
#: Seconds for which a resource stays in the Node's capacity after its plugin has ended.
GRACE_S = 300.0
MIN_PAUSE_S = 0.1
#: Of the plugin watcher, in the reference.
RETRY = BackoffPolicy(initial_s=0.5, cap_s=122.0)
_PAUSE_FACTOR = 10
#: Seconds of pause for each list that was skipped: ten times what it costs to receive one.
_SKIPPED_S = 50e-6
_PARSE_S = 30.0
#: Characters; longer than any valid name.
_MAX_NAME = 400
#: Bytes of a response to `Allocate`, which is kept and written for as long as the pod exists.
MAX_RESPONSE = 256 << 10
_NO_CONTAINERS = (
    "no containers return in allocation response &AllocateResponse{ContainerResponses:[]*ContainerAllocateResponse{},}"
)


class DeviceInputs(Value):
    """The cells that are read: what the plugin watcher has found, and the containers that run at the start."""

    plugins: Cell[Plugins]
    observed: Cell[Observed]


class _Endpoint(Struct):
    """One registered plugin. `is_stopped`: its list has ended, or it was replaced."""

    resource: str
    client: DevicePluginClient
    options: PluginOptions
    is_stopped: bool = False
    task: asyncio.Task[None] | None = None


class _Refusals:
    """The newest refusals of registrations by resource, so that a plugin that tries again and again fills no log."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lines = TokenBucket(1 / LOGGED_EVERY_S, LOGGED_AT_ONCE)
        self._reasons: dict[str, str] = {}

    def is_new(self, resource: str, reason: str) -> bool:
        """Whether the refusal is to be logged: its reason is not the last one of this resource, and few others were logged."""
        if self._reasons.get(resource) == reason or not self._lines.take(self._clock.monotonic()):
            return False
        self._reasons.pop(resource, None)
        self._reasons[resource] = reason
        if len(self._reasons) > MAX_RESOURCES:
            del self._reasons[next(iter(self._reasons))]
        return True

    def forget(self, resource: str) -> None:
        """The resource was registered, so that its next refusal is new."""
        self._reasons.pop(resource, None)


class NodeDevicePlugins:
    """All plugins of the node. `changed` is set when there is something for `refresh` to take."""

    def __init__(self, files: DeviceFiles, inputs: DeviceInputs, flight: SingleFlight, clock: Clock) -> None:
        self.changed = asyncio.Event()
        self._files = files
        self._inputs = inputs
        self._flight = flight
        self._clock = clock
        self._limit = CallLimit(REGISTRATIONS_PER_S, MAX_RESOURCES, clock)
        self._refusals = _Refusals(clock)
        self._supervisor = Supervisor("device-plugins")
        self._endpoints: dict[str, _Endpoint] = {}
        self._resources: dict[str, DeviceResource] = {}
        self._removed: frozenset[str] = frozenset()
        self._graces: dict[str, asyncio.TimerHandle] = {}
        self._watched: dict[str, tuple[Plugin, asyncio.Task[_Endpoint]]] = {}
        self._has_news = True

    def start(self, nodes: tuple[int, ...]) -> DeviceManager:
        """The manager at the agent's start: what the file has, with all plugins stopped. Blocks. Raises HostError.

        `nodes`: the machine's NUMA nodes.
        """
        self._files.prepare()
        found = self._files.read()
        if found is None:
            return DeviceManager(nodes, running=None)
        for resource in found.resources:
            self._resources[resource] = DeviceResource(is_stopped=True)
        return DeviceManager(nodes, dict(self._resources), found.state, running=None)

    async def run(self) -> None:
        """Keep the connections to the plugins until a task fails, and raise its error."""
        async with self._supervisor as supervisor:
            for resource in self._resources:
                self._begin_grace(resource)
            supervisor.start_root("watched device plugins", self._follow_watcher())
            try:
                raise await supervisor.wait_failed()
            finally:
                for timer in self._graces.values():
                    timer.cancel()
                for endpoint in self._endpoints.values():
                    endpoint.client.close()

    # Registration

    def methods(self) -> dict[str, Method]:
        """The methods of the agent's own socket, by path."""
        return {REGISTER: self.register}

    async def register(self, data: bytes) -> bytes:
        """`Register`: connect to the plugin and follow its list. Raises RpcError."""
        self._limit.check()
        request = read_registration(data)
        name = shorten(request.resource, _MAX_NAME)
        REGISTRATIONS.inc(name)
        if request.version not in VERSIONS:
            supported = " ".join(map(json.dumps, VERSIONS))
            version = json.dumps(shorten(request.version, _MAX_NAME), ensure_ascii=False)
            problem = f"requested API version {version} is not supported by kubelet. Supported version is [{supported}]"
        elif not is_extended(request.resource):
            problem = f"the ResourceName {json.dumps(name, ensure_ascii=False)} is invalid"
        else:
            outcome = await self._connect(request.resource, f"{self._files.directory}/{request.endpoint}")
            if isinstance(outcome, _Endpoint):
                self._refusals.forget(name)
                return registered()
            problem = outcome
        if self._refusals.is_new(name, problem):
            log.warning("a device plugin cannot be registered", resource=name, reason=problem)
        raise RpcError(Code.UNKNOWN, problem)

    async def _connect(self, resource: str, path: str) -> _Endpoint | str:
        """Replace the resource's plugin by the one at `path`; or return why not."""
        if resource not in self._endpoints and len(self._endpoints) >= MAX_RESOURCES:
            return f"more than {MAX_RESOURCES} resources of device plugins"
        client: DevicePluginClient | None = None
        options: PluginOptions | None = None
        try:
            client = DevicePluginClient(path)
            options = await client.options()
        except RpcError as error:
            return f"failed to get device plugin options: {error}"
        finally:
            if client is not None and options is None:
                client.close()  # also when the registration is cancelled
        endpoint = _Endpoint(resource, client, options)
        if (before := self._endpoints.get(resource)) is not None:
            self._close(before)
        self._endpoints[resource] = endpoint
        if (timer := self._graces.pop(resource, None)) is not None:
            timer.cancel()
        log.info("device plugin registered", resource=resource, endpoint=path)
        endpoint.task = self._supervisor.start_child(f"devices of {resource}", self._follow(endpoint), self._crashed)
        return endpoint

    def _close(self, endpoint: _Endpoint) -> None:
        endpoint.is_stopped = True
        endpoint.client.close()
        if endpoint.task is not None and endpoint.task is not asyncio.current_task():
            endpoint.task.cancel()

    def _crashed(self, error: BaseException) -> None:
        log.error("a device plugin is not followed any more", error=repr(error))

    async def _follow_watcher(self) -> None:
        """Register the plugins that the plugin watcher has found, and disconnect those that it has lost."""
        async for plugins in self._inputs.plugins.changes():
            now = {plugin.socket: plugin for plugin in plugins.of(PluginType.DEVICE)}
            for socket, (plugin, connecting) in list(self._watched.items()):
                if now.get(socket) != plugin:
                    del self._watched[socket]
                    if connecting.done() and not connecting.cancelled():
                        self._stop(connecting.result(), "the plugin has removed its registration socket")
                    connecting.cancel()
            for socket, plugin in now.items():
                if socket not in self._watched:
                    connecting = self._supervisor.start_child(f"device plugin {socket}", self._connect_watched(plugin))
                    self._watched[socket] = plugin, connecting

    async def _connect_watched(self, plugin: Plugin) -> _Endpoint:
        """Connect to a plugin that the plugin watcher has found, which is tried again until it succeeds."""
        for failures in itertools.count(1):
            REGISTRATIONS.inc(plugin.name)
            outcome = await self._connect(plugin.name, plugin.endpoint)
            if isinstance(outcome, _Endpoint):
                self._refusals.forget(plugin.name)
                return outcome
            if self._refusals.is_new(plugin.name, outcome):
                log.warning("a device plugin cannot be registered", resource=plugin.name, reason=outcome)
            await asyncio.sleep(RETRY.delay_s(failures))
        raise AssertionError("it is tried without end")

    # Lists

    async def _follow(self, endpoint: _Endpoint) -> None:
        """Take the plugin's lists until it ends."""
        reason = "the plugin has ended its list"
        try:
            async for data, skipped in endpoint.client.watch():
                began = self._clock.monotonic()
                work = partial(read_devices, data)
                outcome = await self._flight.run_next(f"devices of {endpoint.resource}", work, _PARSE_S)
                if not isinstance(outcome, Done):
                    reason = str(outcome.error) if isinstance(outcome, Failed) else "its list takes too long to parse"
                    break
                self._take(endpoint, outcome.value)
                took = self._clock.monotonic() - began
                await asyncio.sleep(max(MIN_PAUSE_S, took * _PAUSE_FACTOR, skipped * _SKIPPED_S))
        except RpcError as error:
            reason = str(error)
        except asyncio.CancelledError:
            return  # replaced, or the agent ends
        self._stop(endpoint, reason)

    def _take(self, endpoint: _Endpoint, listed: DeviceResource) -> None:
        options = endpoint.options
        resource = replace(listed, prefers=options.prefers)
        if resource != self._resources.get(endpoint.resource):
            self._removed -= {endpoint.resource}
            self._set(endpoint.resource, resource)

    def _stop(self, endpoint: _Endpoint, reason: str) -> None:
        """The plugin is gone: none of its devices is healthy."""
        if endpoint.is_stopped:
            return
        self._close(endpoint)
        log.warning("a device plugin has ended", resource=endpoint.resource, reason=reason)
        known = self._resources.get(endpoint.resource, DeviceResource())
        unhealthy = known.healthy | known.unhealthy
        self._set(endpoint.resource, replace(known, healthy=frozenset(), unhealthy=unhealthy, is_stopped=True))
        self._begin_grace(endpoint.resource)

    def _set(self, name: str, resource: DeviceResource) -> None:
        self._resources[name] = resource
        self._has_news = True
        self.changed.set()

    def _begin_grace(self, resource: str) -> None:
        self._graces[resource] = asyncio.get_running_loop().call_later(GRACE_S, self._remove, resource)

    def _remove(self, resource: str) -> None:
        """No plugin has registered the resource again in time."""
        del self._graces[resource]
        self._endpoints.pop(resource, None)
        self._resources.pop(resource, None)
        self._removed |= {resource}
        self._has_news = True
        self.changed.set()
        log.warning("a resource is removed, because its device plugin has not come back", resource=resource)

    # The interface to the loop of placement

    def refresh(self, devices: DeviceManager) -> DeviceManager:
        """The manager with all that plugins have reported since the last call; the same object if nothing has changed."""
        if devices.running is None and (observed := self._inputs.observed.get()).listed_at is not None:
            devices = replace(devices, running=running_containers(observed))
        if self._has_news:
            self._has_news = False
            devices = replace(devices, resources=dict(self._resources), removed=self._removed)
        return devices

    def is_saved(self, devices: DeviceManager) -> bool:
        """Whether the file of allocations has them and the lists."""
        return self._files.is_saved(devices)

    async def save(self, devices: DeviceManager) -> bool:
        """Write the file of allocations, if they or the lists have changed. Returns whether the file has them."""
        return await self._files.save(devices)

    async def prefer(self, request: PreferredAllocationRequest) -> Collection[str] | AllocationError:
        """The devices that the plugin prefers."""
        endpoint = self._endpoints.get(request.resource)
        if endpoint is None or endpoint.is_stopped:
            return frozenset()
        try:
            return await endpoint.client.prefer(request.available, request.must_include, request.size)
        except RpcError as error:
            log.warning("a device plugin does not choose devices", resource=request.resource, error=error)
            return AllocationError(f"device plugin GetPreferredAllocation rpc failed with err: {error}")

    async def allocate(self, pod_uid: str, call: AllocateCall) -> bytes | AllocationError:
        """Call `Allocate`; returns its response for the container."""
        endpoint = self._endpoints.get(call.resource)
        if endpoint is None:
            return AllocationError(f"unknown Device Plugin {call.resource}")
        if endpoint.is_stopped:
            return AllocationError(f"endpoint {call.resource} has been stopped")
        began = self._clock.monotonic()
        try:
            response = await endpoint.client.allocate(call.ids)
        except RpcError as error:
            log.warning("a device plugin does not allocate devices", pod=pod_uid, resource=call.resource, error=error)
            return AllocationError(str(error))
        finally:
            ALLOCATIONS.observe(self._clock.monotonic() - began, call.resource)
        if response is not None and len(response) > MAX_RESPONSE:
            return AllocationError(f"the allocation response of {len(response)} bytes is larger than {MAX_RESPONSE}")
        return AllocationError(_NO_CONTAINERS) if response is None else response

    # The interface to pod workers

    async def pre_start(self, devices: Collection[AssignedDevices]) -> str:
        """Let the plugins prepare a container's devices before it starts. Returns why it cannot start; empty if it can."""
        for assigned in devices:
            endpoint, known = self._endpoints.get(assigned.resource), self._resources.get(assigned.resource)
            if endpoint is None and known is None:
                return f"endpoint not found in cache for a registered resource: {assigned.resource}"
            if endpoint is None or not endpoint.options.needs_pre_start:
                continue
            problem = f"endpoint {assigned.resource} has been stopped"
            if not endpoint.is_stopped:
                try:
                    await endpoint.client.pre_start(assigned.ids)
                    continue
                except RpcError as error:
                    problem = str(error)
            return f"device plugin PreStartContainer rpc failed with err: {problem}"
        return ""


def running_containers(observed: Observed) -> frozenset[tuple[str, str]]:
    """Pod UID and name of all containers that run."""
    views = ((uid, view) for uid, pod in observed.pods.items() for view in pod.containers)
    return frozenset((str(uid), view.name) for uid, view in views if view.is_running)
