"""What plugins get: their environment, and their configuration on standard input. Pure.

Source: the CNI specification, "Execution protocol"; its conventions for capabilities; the arguments that Kubernetes' runtimes pass.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum

import msgspec

from pykubelet.base.kit.text import shorten
from pykubelet.base.kit.values import Value
from pykubelet_cri_docker.network.config import NetworkList, NetworkPlugin
from pykubelet_cri_docker.network.model import Attachment, Bandwidth, CniError, JsonObject, SandboxNetwork

#: The limits of a pod's bandwidth in Kubernetes: bits each second.
MIN_BANDWIDTH, MAX_BANDWIDTH = 1000, 10**15
#: How much may pass at once: bits. It is the most that the plugin accepts, as with other runtimes.
BURST_BITS = 2**31 - 1


class CniCommand(StrEnum):
    """The operations of plugins."""

    ADD = "ADD"
    DEL = "DEL"
    CHECK = "CHECK"
    STATUS = "STATUS"
    GC = "GC"


class PluginInput(Value):
    """What a plugin gets. `variables`: those of CNI but `CNI_PATH`. `failed`: the beginning of the message if it fails."""

    variables: Mapping[str, str]
    stdin: bytes
    failed: str


def attachment_input(
    command: CniCommand,
    network: NetworkList,
    plugin: NetworkPlugin,
    attachment: Attachment,
    previous: JsonObject | None,
) -> PluginInput:
    """The input of a plugin for an attachment: of ADD, DEL and CHECK. `previous`: the result to go on from."""
    variables = {
        "CNI_COMMAND": str(command),
        "CNI_CONTAINERID": attachment.container_id,
        "CNI_NETNS": attachment.netns,
        "CNI_IFNAME": attachment.interface,
        "CNI_ARGS": ";".join(f"{name}={value}" for name, value in attachment.arguments),
    }
    config: JsonObject = {**plugin.config, "name": network.name, "cniVersion": network.version}
    if previous is not None:
        config["prevResult"] = previous
    runtime = {name: value for name, value in attachment.capabilities.items() if name in plugin.capabilities}
    if runtime:
        config["runtimeConfig"] = runtime
    return PluginInput(variables, msgspec.json.encode(config), _failed(command, network, plugin))


def network_input(
    command: CniCommand, network: NetworkList, plugin: NetworkPlugin, valid: Sequence[tuple[str, str]] | None = None
) -> PluginInput:
    """The input of a plugin for its network: of STATUS and GC. `valid`: of GC, containers and interfaces that stay."""
    config: JsonObject = {**plugin.config, "name": network.name, "cniVersion": network.version}
    if valid is not None:
        attachments = [{"containerID": container, "ifname": interface} for container, interface in valid]
        config["cni.dev/valid-attachments"] = attachments
        config["cni.dev/attachments"] = attachments  # the name that the specification had by mistake
    return PluginInput({"CNI_COMMAND": str(command)}, msgspec.json.encode(config), _failed(command, network, plugin))


def _failed(command: CniCommand, network: NetworkList, plugin: NetworkPlugin) -> str:
    return f'network "{network.name}": plugin type="{plugin.type}" failed ({command.lower()})'


def arguments_of(pod: SandboxNetwork) -> tuple[tuple[str, str], ...]:
    """The arguments of `CNI_ARGS`. CniError for a name that cannot be passed in them."""
    arguments = (
        ("IgnoreUnknown", "1"),
        ("K8S_POD_NAMESPACE", pod.namespace),
        ("K8S_POD_NAME", pod.name),
        ("K8S_POD_INFRA_CONTAINER_ID", pod.container_id),
        ("K8S_POD_UID", pod.uid),
    )
    for name, value in arguments:
        if not value.isprintable() or ";" in value or "=" in value or len(value) > 253:
            raise CniError(f"{name} {shorten(value, 64)!r} cannot be passed to CNI plugins")
    return arguments


def capabilities_of(pod: SandboxNetwork) -> JsonObject:
    """What plugins with these capabilities get as `runtimeConfig`. Capabilities of which the pod asks nothing are left out.

    CniError for a bandwidth that Kubernetes refuses.
    """
    found: JsonObject = {}
    ports = [
        {
            "hostPort": port.host_port,
            "containerPort": port.container_port,
            "protocol": port.protocol.lower(),
            "hostIP": port.host_ip,
        }
        for port in pod.ports
        if port.host_port > 0
    ]
    if ports:
        found["portMappings"] = ports
    if limits := _limits(pod.bandwidth):
        found["bandwidth"] = limits
    if pod.dns is not None:
        found["dns"] = {"servers": pod.dns.servers, "searches": pod.dns.searches, "options": pod.dns.options}
    if pod.ip_ranges:
        found["ipRanges"] = [[{"subnet": subnet}] for subnet in pod.ip_ranges]
    if pod.cgroup_path:
        found["cgroupPath"] = pod.cgroup_path
    return found


def _limits(bandwidth: Bandwidth) -> JsonObject:
    limits: JsonObject = {}
    if bandwidth.ingress:
        limits |= {"ingressRate": _rate("ingress", bandwidth.ingress), "ingressBurst": BURST_BITS}
    if bandwidth.egress:
        limits |= {"egressRate": _rate("egress", bandwidth.egress), "egressBurst": BURST_BITS}
    return limits


def _rate(direction: str, text: str) -> int:
    from pykubelet.base.api.quantity import QuantityError, parse_text  # few pods have limits

    what = f'{direction} bandwidth "{shorten(text, 64)}"'
    try:
        bits = parse_text(text).value()
    except QuantityError as error:
        raise CniError(f"{what}: {error}") from error
    if not MIN_BANDWIDTH <= bits <= MAX_BANDWIDTH:
        raise CniError(f"{what} must be from 1k to 1P")
    return bits
