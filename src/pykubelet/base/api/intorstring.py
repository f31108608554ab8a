"""IntOrString fields: ports by number or name, counts by number or percentage. Pure."""

from __future__ import annotations

from pykubelet.base.api.core import ContainerPort, IntOrString
from pykubelet.base.kit.text import parse_decimal


def resolve_port(port: IntOrString, ports: tuple[ContainerPort, ...]) -> int | None:
    """The port number of a probe or hook, given as a number, as digits in text, or as the name of a container port.

    None if the name is not among `ports` or the number is outside 1-65535.
    """
    if isinstance(port, str):
        named = next((candidate.containerPort for candidate in ports if candidate.name == port), None)
        port = named if named is not None else parse_decimal(port, 65535) or 0
    return port if 0 < port < 65536 else None


def port_problem(port: IntOrString) -> str:
    """Why `resolve_port` returned None."""
    if isinstance(port, str) and not (port.isascii() and port.isdigit()):
        return f'container has no port named "{go_quotable(port)}"'
    return f"invalid port number: {port}"


def go_quotable(text: str) -> str:
    """`text` escaped as Go prints it between double quotes."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return escaped.replace("\n", "\\n").replace("\t", "\\t").replace("\r", "\\r")
