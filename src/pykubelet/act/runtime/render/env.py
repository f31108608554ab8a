"""The environment of a container. Pure.

Rules (source: Kubernetes docs, "Define Environment Variables for a Container", "Expose Pod Information", KEP-3721):
1. Services of the pod's namespace, as `{NAME}_SERVICE_HOST` and so on (already in the context).
2. `envFrom`, in order; a later source replaces an earlier one.
3. `env`, in order; a value may refer to variables that are already defined (2 and 3), or else to those of services.
Later variables replace earlier ones. If a referenced object or key is missing, an optional variable is left out; otherwise
the container is refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TypeVar

from pykubelet.act.runtime.render.context import (
    AnyContainer,
    ApiObjects,
    ContainerContext,
    RenderError,
    RenderSettings,
    Unavailable,
)
from pykubelet.act.runtime.render.render_fields import field_text, resource_text
from pykubelet.base.api.core import EnvFromSource, EnvVar, EnvVarSource, FileKeySelector, Pod
from pykubelet.base.model.addresses import reported_ips
from pykubelet.base.model.expansion import expand
from pykubelet.base.model.roster import is_static

T = TypeVar("T")

MAX_ENV_FILE_KEY = 128
MAX_ENV_FILE_VALUE = 32 * 1024

_BLANK = " \t"


def build_environment(
    pod: Pod, container: AnyContainer, settings: RenderSettings, ctx: ContainerContext
) -> dict[str, str]:
    """All variables, including those of device plugins. Raises RenderError if one cannot be resolved."""
    services = _services(pod, ctx)
    defined: dict[str, str] = {}
    for source in container.envFrom:
        defined.update(_from_object(source, pod.metadata.namespace, ctx.api_objects))
    for variable in container.env:
        if variable.value or variable.valueFrom is None:
            defined[variable.name] = expand(variable.value, defined, services)
            continue
        value = _resolve(variable, variable.valueFrom, pod, container, settings, ctx)
        if value is not None:
            defined[variable.name] = value
    return {**ctx.devices.env, **defined, **{name: text for name, text in services.items() if name not in defined}}


def _services(pod: Pod, ctx: ContainerContext) -> Mapping[str, str]:
    if pod.spec.enableServiceLinks is None:
        raise RenderError("nil pod.spec.enableServiceLinks encountered, cannot construct envvars")
    if ctx.services is None:
        if not is_static(pod):
            raise RenderError("services have not yet been read at least once, cannot construct envvars")
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
        data = _secret(ctx.api_objects, namespace, in_secret.name, in_secret.optional)
        return _key(data, in_secret.key, in_secret.optional, f"Secret {namespace}/{in_secret.name}")
    if source.fileKeyRef is not None:
        return _from_file(source.fileKeyRef, ctx)
    return variable.value


def _from_object(source: EnvFromSource, namespace: str, objects: ApiObjects | None) -> dict[str, str]:
    data: Mapping[str, str] | None = None
    if source.configMapRef is not None:
        data = _config_map(objects, namespace, source.configMapRef.name, source.configMapRef.optional)
    elif source.secretRef is not None:
        data = _secret(objects, namespace, source.secretRef.name, source.secretRef.optional)
    return {source.prefix + key: value for key, value in (data or {}).items()}


def _config_map(
    objects: ApiObjects | None, namespace: str, name: str, optional: bool | None
) -> Mapping[str, str] | None:
    found = _named(None if objects is None else objects.config_maps, "configMap", namespace, name, optional)
    return None if found is None else found.data


def _secret(objects: ApiObjects | None, namespace: str, name: str, optional: bool | None) -> Mapping[str, str] | None:
    found = _named(None if objects is None else objects.secrets, "secret", namespace, name, optional)
    if found is None:
        return None
    # Environments are bytes: bytes that are not UTF-8 are kept as surrogates and written out unchanged.
    return {key: data.decode("utf-8", "surrogateescape") for key, data in found.data.items()}


def _named(
    objects: Mapping[str, T | Unavailable] | None, kind: str, namespace: str, name: str, optional: bool | None
) -> T | None:
    """One object; None if it is missing and optional. RenderError for other missing or unreadable objects."""
    if objects is None:
        raise RenderError(f"couldn't get {kind} {namespace}/{name}, no kubeClient defined")
    found = objects.get(name) or Unavailable(f'{kind.lower()} "{name}" not found', not_found=True)
    if not isinstance(found, Unavailable):
        return found
    if optional and found.not_found:
        return None
    raise RenderError(found.message)


def _key(data: Mapping[str, str] | None, key: str, optional: bool | None, owner: str) -> str | None:
    if data is None:
        return None
    if key not in data and not optional:
        raise RenderError(f"couldn't find key {key} in {owner}")
    return data.get(key)


def _from_file(selector: FileKeySelector, ctx: ContainerContext) -> str | None:
    """A variable of a file that another container of the pod wrote into an emptyDir (KEP-3721)."""
    key = selector.key
    if selector.volumeName not in ctx.mounts:
        raise RenderError(f'cannot find the volume "{selector.volumeName}" referenced by FileKeyRef')
    if len(key) > MAX_ENV_FILE_KEY:
        raise RenderError(f'environment variable key "{key}" exceeds maximum length of {MAX_ENV_FILE_KEY} characters')
    text = ctx.env_files.get((selector.volumeName, selector.path))
    found = None if text is None else read_env_file(text, key)
    if found is None:
        raise RenderError("couldn't parse env file")
    if len(found.encode("utf-8", "surrogateescape")) > MAX_ENV_FILE_VALUE:
        raise RenderError(f'environment variable value for key "{key}" exceeds maximum size of 32KB')
    if not found:
        if selector.optional:
            return None
        file = f"{ctx.mounts[selector.volumeName].host_path}/{selector.path}"
        raise RenderError(f'environment variable key "{key}" not found in file "{file}"')
    return found


def read_env_file(text: str, key: str) -> str | None:
    """The value of `key` in lines `NAME='value'`, "" if it is missing. Values may span lines.

    Empty lines and comments are skipped. White space after the equals sign ends an empty value, as in a shell. None if any
    line before the key has another form.
    """
    lines = (line.removesuffix("\r") for line in text.split("\n"))
    for line in lines:
        line = line.lstrip(_BLANK)
        if not line or line.startswith("#"):
            continue
        name, equals, value = line.partition("=")
        if not equals or name != name.rstrip(_BLANK) or not name:
            return None
        found: str | None = ""
        if value == value.lstrip(_BLANK):
            found = _quoted(value, lines)
        if name == key or found is None:
            return found
    return ""


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
