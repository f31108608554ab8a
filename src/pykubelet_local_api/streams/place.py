"""Where a proxied request goes: the address of the agent, of a pod, or of a pod behind a service. Pure.

Owns: the forms `name`, `name:port` and `scheme:name:port`, addresses that are never proxied to, and the choice of a service's pod.
Source: the Kubernetes documentation "Access Services Running on Clusters"; the proxy subresources in the API reference.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Iterator

from pykubelet.base.kit.text import parse_decimal
from pykubelet.base.kit.values import Value
from pykubelet_local_api.errors import StatusError, bad_request, not_found, unavailable
from pykubelet_local_api.kinds.table import STORED
from pykubelet_local_api.objects import Json, is_deleting, name_of
from pykubelet_local_api.view import View

#: The agent's port, if its Node does not name another.
AGENT_PORT = 10250
_NODES, _PODS, _SERVICES = STORED["nodes"], STORED["pods"], STORED["services"]
#: Of a node's addresses, those that are tried, the preferred one first.
_ADDRESS_TYPES = ("InternalIP", "ExternalIP", "Hostname")
_SCHEMES = ("", "http", "https")
_PORTS = {"http": 80, "https": 443}
_SHOWN = 100


class ServerPlace(Value):
    """Where a request goes. `is_agent`: it is the agent, which knows the client certificate of this API."""

    host: str
    port: int
    is_tls: bool = False
    is_agent: bool = False

    @property
    def netloc(self) -> str:
        """Host and port: `10.0.0.1:80` or `[fd00::1]:80`."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def url(self) -> str:
        """Scheme, host and port."""
        return f"{'https' if self.is_tls else 'http'}://{self.netloc}"


def agent_place(view: View, node: str) -> ServerPlace:
    """The agent of a node. Raises StatusError (404, 500)."""
    found = view.get(_NODES.storage, "", node)
    if found is None:
        raise not_found(_NODES, node)
    status = found.get("status") or {}
    addresses = status.get("addresses") or ()
    hosts = [str(entry["address"]) for kind in _ADDRESS_TYPES for entry in addresses if entry["type"] == kind]
    if not hosts:
        raise StatusError(500, "", f"no preferred addresses found; known addresses: {_listed(addresses)}")
    endpoint = (status.get("daemonEndpoints") or {}).get("kubeletEndpoint") or {}
    return ServerPlace(hosts[0], int(endpoint.get("Port") or AGENT_PORT), is_tls=True, is_agent=True)


def node_place(view: View, wanted: str) -> ServerPlace:
    """The place of `nodes/<wanted>/proxy`: the agent, or another port of its node. Raises StatusError."""
    scheme, name, port = _split(wanted, "node")
    agent = agent_place(view, name)
    if port in ("", str(agent.port)):
        return agent
    _check_address(agent.host)
    return ServerPlace(agent.host, _port_number(port, wanted, "node"), is_tls=scheme == "https")


def pod_place(view: View, namespace: str, wanted: str) -> ServerPlace:
    """The place of `pods/<wanted>/proxy`: without a port, the first that a container names. Raises StatusError."""
    scheme, name, port = _split(wanted, "pod")
    pod = view.get(_PODS.storage, namespace, name)
    if pod is None:
        raise not_found(_PODS, name)
    named = next((str(entry["containerPort"]) for entry in _ports(pod)), "")
    addresses = (pod.get("status") or {}).get("podIPs") or [{}]
    host = str(addresses[0].get("ip") or "")
    _check_address(host)
    number = _PORTS[scheme or "http"] if not (port or named) else _port_number(port or named, wanted, "pod")
    return ServerPlace(host, number, is_tls=scheme == "https")


def service_place(view: View, namespace: str, wanted: str) -> ServerPlace:
    """The place of `services/<wanted>/proxy`: a ready pod of the service. Raises StatusError (404, 503)."""
    scheme, name, port = _split(wanted, "service")
    service = view.get(_SERVICES.storage, namespace, name)
    if service is None:
        raise not_found(_SERVICES, name)
    ports = (service.get("spec") or {}).get("ports") or ()
    number = parse_decimal(port)
    if number is not None:
        chosen = next((entry for entry in ports if entry["port"] == number), None)
        if chosen is None:
            raise unavailable(f'no service port {port[:_SHOWN]} found for service "{name}"', 0)
    else:
        chosen = next((entry for entry in ports if (entry.get("name") or "") == port), None)
    found = next(_endpoints(view, namespace, service, chosen), None) if chosen is not None else None
    if found is None:
        raise unavailable(f'no endpoints available for service "{wanted[:_SHOWN]}"', 0)
    return ServerPlace(*found, is_tls=scheme == "https")


def _endpoints(view: View, namespace: str, service: Json, port: Json) -> Iterator[tuple[str, int]]:
    """Addresses and ports behind a port of a service: its ready pods; without a selector, what an Endpoints object names."""
    selector = service["spec"].get("selector")
    if not selector:
        yield from _listed_endpoints(view, namespace, service, port)
        return
    for pod in view.list(_PODS.storage, namespace):
        is_selected = selector.items() <= (pod["metadata"].get("labels") or {}).items()
        if is_selected and not is_deleting(pod) and _is_ready(pod) and (number := _target_port(pod, port)):
            yield str(pod["status"]["podIP"]), number


def _listed_endpoints(view: View, namespace: str, service: Json, port: Json) -> Iterator[tuple[str, int]]:
    listed = view.get("endpoints", namespace, name_of(service)) or {}
    for subset in listed.get("subsets") or ():
        for entry in subset.get("ports") or ():
            if (entry.get("name") or "") != (port.get("name") or ""):
                continue
            for address in subset.get("addresses") or ():
                if _may_be_proxied(str(address["ip"])):
                    yield str(address["ip"]), int(entry["port"])


def _is_ready(pod: Json) -> bool:
    status = pod.get("status") or {}
    is_ready = any(entry["type"] == "Ready" and entry["status"] == "True" for entry in status.get("conditions") or ())
    return is_ready and _may_be_proxied(str(status.get("podIP") or ""))


def _target_port(pod: Json, port: Json) -> int:
    """The pod's port behind a service's port; 0 if the pod has no port of that name."""
    target = port.get("targetPort") or port["port"]
    if isinstance(target, int):
        return target
    return next((int(entry["containerPort"]) for entry in _ports(pod) if entry.get("name") == target), 0)


def _ports(pod: Json) -> Iterator[Json]:
    for container in pod["spec"].get("containers") or ():
        yield from container.get("ports") or ()


def _split(wanted: str, what: str) -> tuple[str, str, str]:
    """Scheme, name and port of `name`, `name:port` or `scheme:name:port`."""
    parts = wanted.split(":")
    scheme, name, port = (["", *parts, ""] if len(parts) == 1 else ["", *parts] if len(parts) == 2 else parts[:3])[:3]
    if len(parts) > 3 or not name or scheme not in _SCHEMES:
        raise bad_request(f'invalid {what} request "{wanted[:_SHOWN]}"')
    return scheme, name, port


def _port_number(port: str, wanted: str, what: str) -> int:
    number = parse_decimal(port)
    if number is None or not 0 < number < 1 << 16:
        raise bad_request(f'invalid {what} request "{wanted[:_SHOWN]}"')
    return number


def _check_address(host: str) -> None:
    if not _may_be_proxied(host):
        raise bad_request("address not allowed")


def _may_be_proxied(host: str) -> bool:
    """Whether a host is an address of the network: never loopback, which programs of this machine trust, nor link-local."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    address = getattr(address, "ipv4_mapped", None) or address  # ::ffff:127.0.0.1 is loopback too
    return not (address.is_loopback or address.is_link_local or address.is_multicast or address.is_unspecified)


def _listed(addresses: Iterable[Json]) -> str:
    return "[" + " ".join(f"{{{entry.get('type')} {entry.get('address')}}}" for entry in addresses) + "]"
