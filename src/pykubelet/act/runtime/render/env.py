"""The environment of a container. Pure.

Rules (source: Kubernetes docs, "Define Environment Variables for a Container", "Expose Pod Information", "Downward API", KEP-3721):
1. Services of the pod's namespace, as `{NAME}_SERVICE_HOST` and so on (already in the context).
2. `envFrom`, in order; a later source replaces an earlier one.
3. `env`, in order; a value may refer to variables that are already defined (2 and 3), or else to those of services.
Later variables replace earlier ones. If a referenced object or key is missing, an optional variable is left out; otherwise
the container is refused, and so is one whose variables no program can be started with.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TypeVar

from pykubelet.act.runtime.render.context import (
    AnyContainer,
    ApiObjects,
    ContainerContext,
    EnvFile,
    RenderSettings,
    Unavailable,
)
from pykubelet.act.runtime.start_error import ContainerStartError
from pykubelet.base.api.core import (
    EnvFromSource,
    EnvVar,
    EnvVarSource,
    FileKeySelector,
    ObjectFieldSelector,
    Pod,
    ResourceFieldSelector,
)
from pykubelet.base.api.fieldpaths import split_subscript
from pykubelet.base.model import fieldrefs
from pykubelet.base.model.addresses import reported_ips
from pykubelet.base.model.arguments import ArgumentSpace
from pykubelet.base.model.fieldrefs import FieldRefError, metadata_text
from pykubelet.base.model.roster import is_static

T = TypeVar("T")

MAX_ENV_FILE_KEY = 128
MAX_ENV_FILE_VALUE = 32 * 1024
UNREADABLE = "couldn't parse env file"
_BLANK = " \t"


def build_environment(
    pod: Pod, container: AnyContainer, settings: RenderSettings, ctx: ContainerContext, space: ArgumentSpace
) -> dict[str, str]:
    """All variables, including those of device plugins, which take their space.

    Raises ContainerStartError if one cannot be resolved, and ArgumentsTooLongError.
    """
    services = _services(pod, ctx)
    defined: dict[str, str] = {}

    def define(name: str, value: str) -> None:
        if name in defined:
            space.free_variable(name, defined[name])
        space.take_variable(name, value)
        defined[name] = value

    for source in _last_of_each(container.envFrom):
        for key, value in _from_object(source, pod.metadata.namespace, ctx.api_objects):
            define(source.prefix + key, value)
    for variable in container.env:
        value = variable.value
        if value or variable.valueFrom is None:
            if "$" in value:
                value = space.expand("env", variable.name, value, defined, services)
            define(variable.name, value)
            continue
        found = _resolve(variable, variable.valueFrom, pod, container, settings, ctx)
        if found is not None:
            define(variable.name, found)
    others = {**ctx.devices.env, **services}
    for name in others.keys() - defined.keys():
        space.take_variable(name, others[name])
    return {**ctx.devices.env, **defined, **{name: text for name, text in services.items() if name not in defined}}


def _last_of_each(sources: Sequence[EnvFromSource]) -> list[EnvFromSource]:
    """The sources without those that are given again later, with the same effect."""
    return list(dict.fromkeys(reversed(sources)))[::-1]


def _services(pod: Pod, ctx: ContainerContext) -> Mapping[str, str]:
    if pod.spec.enableServiceLinks is None:
        raise ContainerStartError("nil pod.spec.enableServiceLinks encountered, cannot construct envvars")
    if ctx.services is None:
        if not is_static(pod):
            raise ContainerStartError("services have not yet been read at least once, cannot construct envvars")
        return {}
    return ctx.services


def _resolve(
    variable: EnvVar,
    source: EnvVarSource,
    pod: Pod,
    container: AnyContainer,
    settings: RenderSettings,
    ctx: ContainerContext,
) -> str | None:
    """The value of a `valueFrom`; None when an optional source does not exist."""
    namespace = pod.metadata.namespace
    if source.fieldRef is not None:
        return field_text(pod, source.fieldRef, reported_ips(ctx.pod_ips, ctx.host_ips), ctx.host_ips)
    if source.resourceFieldRef is not None:
        return resource_text(pod, container, source.resourceFieldRef, settings.node.allocatable)
    if (in_map := source.configMapKeyRef) is not None:
        data = _config_map(ctx.api_objects, namespace, in_map.name, in_map.optional)
        return _key(data, in_map.key, in_map.optional, f"ConfigMap {namespace}/{in_map.name}")
    if (in_secret := source.secretKeyRef) is not None:
        secret = _secret(ctx.api_objects, namespace, in_secret.name, in_secret.optional)
        found = _key(secret, in_secret.key, in_secret.optional, f"Secret {namespace}/{in_secret.name}")
        return None if found is None else _text(found)
    if source.fileKeyRef is not None:
        return _from_file(source.fileKeyRef, ctx)
    return variable.value


def _from_object(source: EnvFromSource, namespace: str, objects: ApiObjects | None) -> Iterator[tuple[str, str]]:
    if (in_map := source.configMapRef) is not None:
        yield from (_config_map(objects, namespace, in_map.name, in_map.optional) or {}).items()
    elif (in_secret := source.secretRef) is not None:
        for key, data in (_secret(objects, namespace, in_secret.name, in_secret.optional) or {}).items():
            yield key, _text(data)


def _config_map(
    objects: ApiObjects | None, namespace: str, name: str, optional: bool | None
) -> Mapping[str, str] | None:
    found = _named(None if objects is None else objects.config_maps, "configMap", namespace, name, optional)
    return None if found is None else found.data


def _secret(objects: ApiObjects | None, namespace: str, name: str, optional: bool | None) -> Mapping[str, bytes] | None:
    found = _named(None if objects is None else objects.secrets, "secret", namespace, name, optional)
    return None if found is None else found.data


def _text(data: bytes) -> str:
    """The value of a variable. Environments are bytes: those that are not UTF-8 are kept as surrogates and written out unchanged."""
    return data.decode("utf-8", "surrogateescape")


def _named(
    objects: Mapping[str, T | Unavailable] | None, kind: str, namespace: str, name: str, optional: bool | None
) -> T | None:
    """One object; None if it is missing and optional. ContainerStartError for other missing or unreadable objects."""
    if objects is None:
        raise ContainerStartError(f"couldn't get {kind} {namespace}/{name}, no kubeClient defined")
    found = objects.get(name) or Unavailable(f'{kind.lower()} "{name}" not found', not_found=True)
    if not isinstance(found, Unavailable):
        return found
    if optional and found.not_found:
        return None
    raise ContainerStartError(found.message)


def _key(data: Mapping[str, T] | None, key: str, optional: bool | None, owner: str) -> T | None:
    if data is None:
        return None
    if key not in data and not optional:
        raise ContainerStartError(f"couldn't find key {key} in {owner}")
    return data.get(key)


def _from_file(selector: FileKeySelector, ctx: ContainerContext) -> str | None:
    """A variable of a file that another container of the pod wrote into an emptyDir (KEP-3721)."""
    key = selector.key
    if selector.volumeName not in ctx.mounts:
        raise ContainerStartError(f'cannot find the volume "{selector.volumeName}" referenced by FileKeyRef')
    if len(key) > MAX_ENV_FILE_KEY:
        raise ContainerStartError(
            f'environment variable key "{key}" exceeds maximum length of {MAX_ENV_FILE_KEY} characters'
        )
    file = ctx.env_files.get((selector.volumeName, selector.path), EnvFile(problem=UNREADABLE))
    found = file.find(key)
    if found is None:
        raise ContainerStartError(file.problem)
    if len(found.encode("utf-8", "surrogateescape")) > MAX_ENV_FILE_VALUE:
        raise ContainerStartError(f'environment variable value for key "{key}" exceeds maximum size of 32KB')
    if not found:
        if selector.optional:
            return None
        path = f"{ctx.mounts[selector.volumeName].host_path}/{selector.path}"
        raise ContainerStartError(f'environment variable key "{key}" not found in file "{path}"')
    return found


def parse_env_file(text: str, wanted: Collection[str]) -> EnvFile:
    """The `wanted` variables of lines `NAME='value'`; the first of a name counts. Values may span lines.

    Empty lines and comments are skipped. White space after the equals sign ends an empty value, as in a shell. Lines after
    one of another form are not read.
    """
    found: dict[str, str] = {}
    lines = (line.removesuffix("\r") for line in text.split("\n"))
    for line in lines:
        line = line.lstrip(_BLANK)
        if not line or line.startswith("#"):
            continue
        name, equals, value = line.partition("=")
        if not equals or name != name.rstrip(_BLANK) or not name:
            return EnvFile(found, UNREADABLE)
        text_of_value: str | None = ""
        if value == value.lstrip(_BLANK):
            text_of_value = _quoted(value, lines)
        if text_of_value is None:
            return EnvFile(found, UNREADABLE)
        if name in wanted:
            found.setdefault(name, text_of_value)
    return EnvFile(found)


def _quoted(value: str, more: Iterator[str]) -> str | None:
    """The text between single quotes; None if anything but a comment follows. `more`: the following lines."""
    if not value.startswith("'"):
        return None
    parts = [value[1:]]
    while "'" not in parts[-1]:
        line = next(more, None)
        if line is None:
            return None
        parts.append(line)
    parts[-1], _, rest = parts[-1].partition("'")
    rest = rest.lstrip(_BLANK)
    return "\n".join(parts) if not rest or rest.startswith("#") else None


def field_text(pod: Pod, selector: ObjectFieldSelector, pod_ips: tuple[str, ...], host_ips: tuple[str, ...]) -> str:
    """The value of a `fieldRef`. ContainerStartError for an unsupported field."""
    if selector.apiVersion not in ("", "v1"):
        raise ContainerStartError(f"unsupported pod version: {selector.apiVersion}")
    path = selector.fieldPath
    match path:
        case "spec.nodeName" | "spec.host":
            return pod.spec.nodeName
        case "spec.serviceAccountName":
            return pod.spec.serviceAccountName
        case "status.podIP":
            return pod_ips[0] if pod_ips else ""
        case "status.podIPs":
            return ",".join(pod_ips)
        case "status.hostIP" | "status.hostIPs":
            if not host_ips:
                raise ContainerStartError("the node has no known address")
            return host_ips[0] if path == "status.hostIP" else ",".join(host_ips)
    try:
        text = metadata_text(pod, path)
    except FieldRefError as error:
        raise ContainerStartError(str(error)) from error
    if text is None:
        problem = "not supported" if split_subscript(path) is None else "does not support subscript"
        raise ContainerStartError(f"field label {problem}: {path}")
    return text


def resource_text(
    pod: Pod, container: AnyContainer, selector: ResourceFieldSelector, allocatable: Mapping[str, int]
) -> str:
    """The value of a `resourceFieldRef`; without a name it refers to `container`. ContainerStartError for an invalid reference."""
    try:
        return fieldrefs.variable_resource_text(pod, container, selector, allocatable)
    except FieldRefError as error:
        raise ContainerStartError(str(error)) from error
