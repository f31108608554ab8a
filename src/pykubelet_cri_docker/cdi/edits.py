"""Which edits CDI devices need, and containers of Docker with them. Pure.

Raises RpcError for devices that cannot be resolved, and for edits that Docker Engine has no field for. Source: as in `specs.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import msgspec

from pykubelet.base.kit.values import Value, field, replace
from pykubelet.net.grpc.status import Code, RpcError
from pykubelet_cri_docker.cdi.specs import NO_PERMISSIONS, CdiMount, CdiNode, CdiSpec, ContainerEdits
from pykubelet_cri_docker.engine import messages as docker
from pykubelet_cri_docker.errors import invalid, unimplemented

_PERMISSIONS = 0o777
#: The letters for the types of devices.
CHARACTER, BLOCK = "cu", "b"
#: Of Linux: 12 bits for the major number, 20 for the minor one.
_MAJORS, _MINORS = 1 << 12, 1 << 20
#: UIDs and GIDs; the highest means none.
_IDS = (1 << 32) - 1
#: The mode of a node that is not on the host, as in runc.
_MODE = 0o666
_PROPAGATIONS = ("private", "rprivate", "slave", "rslave", "shared", "rshared")
_BINDS = ("bind", "rbind")
#: Fields of edits that Docker has none for, by their names in a file.
_IMPOSSIBLE = (("hooks", "hooks"), ("net_devices", "netDevices"), ("intel_rdt", "intelRdt"))
#: Devices of a container.
MAX_DEVICES = 256
#: The most problems of files in a message.
_SHOWN = 3


class SpecFile(Value):
    """A file. `priority`: that of its directory; the highest counts. `spec`: None if it cannot be used. `problem`: why."""

    path: str
    priority: int
    spec: CdiSpec | None
    problem: str = ""


class DeviceEdits(Value):
    """Edits for a device. `device`: its full name."""

    device: str
    edits: ContainerEdits


class HostNode(Value):
    """A device of the machine. `types`: the letters for its type. `mode`: permission bits."""

    types: str
    major: int
    minor: int
    mode: int
    uid: int
    gid: int


class Injection(Value):
    """Edits, and the devices at the paths of their device nodes on the host. Where there is none, the path is missing.

    `own`: the paths of nodes that were made because the host has none like it (`own_node`).
    """

    edits: Sequence[DeviceEdits]
    nodes: Mapping[str, HostNode]
    own: Mapping[CdiNode, str] = field(default_factory=dict)


def resolve(files: Sequence[SpecFile], names: Sequence[str]) -> list[DeviceEdits]:
    """The edits for devices in their order, those of a whole file before those of its first device.

    Two files of the same priority with the same device conflict: it is in neither.
    """
    if len(names) > MAX_DEVICES:
        raise invalid("CDI_devices", f"has more than {MAX_DEVICES} devices")
    found: list[DeviceEdits] = []
    used: set[str] = set()
    for name in dict.fromkeys(names):
        file, edits = _find(files, name)
        if file.spec is not None and file.path not in used:
            used.add(file.path)
            found.append(DeviceEdits(name, file.spec.container_edits))
        found.append(DeviceEdits(name, edits))
    return found


def _find(files: Sequence[SpecFile], name: str) -> tuple[SpecFile, ContainerEdits]:
    kind, _, short = name.partition("=")
    having = [
        (file, device.container_edits)
        for file in files
        if file.spec is not None and file.spec.kind == kind
        for device in file.spec.devices
        if device.name == short
    ]
    highest = max((file.priority for file, _ in having), default=0)
    best = [(file, edits) for file, edits in having if file.priority == highest]
    if len(best) > 1:
        raise _unresolved(name, "conflict: " + ", ".join(file.path for file, _ in best[:_SHOWN]))
    if not best:
        problems = [f"{file.path}: {file.problem}" for file in files if file.problem]
        raise _unresolved(name, "; ".join(problems[:_SHOWN]))
    return best[0]


def _unresolved(name: str, why: str) -> RpcError:
    text = f"CDI device injection failed: unresolvable CDI devices {name[:256]}"
    return RpcError(Code.UNKNOWN, f"{text} ({why})" if why else text)


def inject(container: docker.NewContainer, injection: Injection) -> docker.NewContainer:
    """The container with edits. A variable, a device or a mount of the container that an edit has too gives way."""
    host = container.host_config
    env, devices = _by_name(container.env), {device.path_in_container: device for device in host.devices}
    mounts, groups = {mount.target: mount for mount in host.mounts}, dict.fromkeys(host.group_add)
    for each in injection.edits:
        for name, shown in _IMPOSSIBLE:
            if getattr(each.edits, name):
                raise unimplemented(_field(each, shown))
        env.update(_by_name(each.edits.env))
        for node in each.edits.device_nodes:
            devices[node.path] = _device(each, node, injection)
        for mount in each.edits.mounts:
            mounts[mount.container_path] = _mount(each, mount)
        groups.update(dict.fromkeys(str(gid) for gid in each.edits.additional_gids if gid))
    changed = msgspec.structs.replace(
        host,
        devices=[*devices.values()],
        mounts=[*mounts.values()],
        binds=[bind for bind in host.binds if bind.split(":")[1] not in mounts],
        group_add=[*groups],
    )
    return msgspec.structs.replace(container, env=[*env.values()], host_config=changed)


def requested(container: docker.NewContainer, names: Sequence[str]) -> docker.NewContainer:
    """The container with devices that the engine resolves itself."""
    asked = docker.DeviceRequest("cdi", [*dict.fromkeys(names)])
    return msgspec.structs.replace(
        container, host_config=msgspec.structs.replace(container.host_config, device_requests=[asked])
    )


def _by_name(env: Sequence[str]) -> dict[str, str]:
    return {variable.partition("=")[0]: variable for variable in env}


def own_node(node: CdiNode, found: HostNode | None) -> HostNode | None:
    """The device that a spec describes, if `found`, the one at its path on the host, is none or another one.

    None if it is that one, or is not described in full. Pure.
    """
    types = next(
        (types for types in (CHARACTER, BLOCK) if node.type and node.type in types), found.types if found else ""
    )
    if not types or (found and node.type and node.type not in found.types and not node.major):
        return None
    numbers = (node.major, node.minor) if node.major else (found.major, found.minor) if found else (0, 0)
    base = HostNode(types, *numbers, _MODE, 0, 0)
    if found is not None and (found.types, found.major, found.minor) == (types, *numbers):
        base = found
    wanted = replace(
        base,
        mode=base.mode if node.file_mode is None else node.file_mode & _PERMISSIONS,
        uid=base.uid if node.uid is None else node.uid,
        gid=base.gid if node.gid is None else node.gid,
    )
    is_possible = 0 < wanted.major < _MAJORS and 0 <= wanted.minor < _MINORS
    is_possible = is_possible and 0 <= wanted.uid < _IDS and 0 <= wanted.gid < _IDS
    return wanted if is_possible and wanted != found else None


def _device(each: DeviceEdits, node: CdiNode, injection: Injection) -> docker.DockerDevice:
    field_name, found, path = _field(each, f"deviceNodes[{node.path}]"), injection.nodes.get(node.on_host), node.on_host
    if own := injection.own.get(node):
        path = own
    elif found is None:
        raise RpcError(Code.FAILED_PRECONDITION, f"{field_name}: {path} is no device of this machine")
    else:
        for name in _differences(node, found):
            raise unimplemented(f"{field_name}.{name} that is not the host's")
    if node.permissions == NO_PERMISSIONS:
        raise unimplemented(f"{field_name}.permissions none")
    return docker.DockerDevice(path, node.path, node.permissions or "rwm")


def _differences(node: CdiNode, found: HostNode) -> Iterator[str]:
    """The fields that would make another device of it than that of the host, which Docker shows as it is."""
    if node.type and node.type not in found.types:
        yield "type"
    if node.major and (node.major, node.minor) != (found.major, found.minor):
        yield "major"
    if node.file_mode is not None and (node.file_mode ^ found.mode) & _PERMISSIONS:
        yield "fileMode"
    if node.uid not in (None, found.uid):
        yield "uid"
    if node.gid not in (None, found.gid):
        yield "gid"


def _mount(each: DeviceEdits, mount: CdiMount) -> docker.DockerMount:
    field = _field(each, f"mounts[{mount.container_path}]")
    if mount.type not in ("", "none", "bind") and not {*mount.options} & {*_BINDS}:
        raise unimplemented(f"{field}.type {mount.type}")
    options = docker.DockerMount.BindOptions(non_recursive="bind" in mount.options)
    is_read_only = False
    for option in mount.options:
        if option in _PROPAGATIONS:
            options.propagation = option
        elif option in ("ro", "rw"):
            is_read_only = option == "ro"
        elif option not in _BINDS:
            raise unimplemented(f"{field}.options {option}")
    return docker.DockerMount(
        type="bind",
        source=mount.host_path,
        target=mount.container_path,
        read_only=is_read_only,
        bind_options=options,
    )


def _field(each: DeviceEdits, field: str) -> str:
    return f"CDI device {each.device}: containerEdits.{field}"
