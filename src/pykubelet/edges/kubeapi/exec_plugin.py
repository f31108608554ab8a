"""Runs exec credential plugins: programs that print a token or a client certificate.

Owns: the exec protocol (`ExecCredential` of v1 and v1beta1) and its limits. Caching is done in `credentials.py`.
The standard output of a plugin never becomes part of an error, because it is a credential.

Source: the Kubernetes documentation "client-go credential plugins" and "client authentication (v1)".
"""

from __future__ import annotations

import os
from typing import ClassVar

import msgspec

from pykubelet.base.api.times import parse_time
from pykubelet.base.kit.values import RedactedValue
from pykubelet.edges.host.fs.errors import HostError
from pykubelet.edges.host.services.process import run_program
from pykubelet.edges.kubeapi.errors import ApiError
from pykubelet.edges.kubeapi.kubeconfig import ExecPlugin

TIMEOUT_S = 60.0
_SHOWN = 300


class PluginCredential(RedactedValue):
    """A credential that a plugin printed. `expires_at`: wall seconds; None: it is used until the server refuses it."""

    hidden: ClassVar = ("token", "cert", "key")
    token: str = ""
    cert: bytes = b""
    key: bytes = b""
    expires_at: float | None = None


class _Status(msgspec.Struct, frozen=True):
    token: str | None = None
    clientCertificateData: str | None = None
    clientKeyData: str | None = None
    expirationTimestamp: str | None = None


class _Credential(msgspec.Struct, frozen=True):
    apiVersion: str = ""
    kind: str = ""
    status: _Status | None = None


async def run_plugin(plugin: ExecPlugin) -> PluginCredential:
    """Run the plugin once. Raises ApiError (status 0) with the plugin's error output."""
    spec: dict[str, object] = {"interactive": False}
    if plugin.cluster is not None:
        spec["cluster"] = plugin.cluster
    info = {"apiVersion": plugin.api_version, "kind": "ExecCredential", "spec": spec}
    environment = {
        **os.environ,
        **dict(plugin.env),
        "KUBERNETES_EXEC_INFO": msgspec.json.encode(info).decode(),
    }
    try:
        finished = await run_program((plugin.command, *plugin.args), env=environment, timeout_s=TIMEOUT_S)
    except HostError as error:
        hint = f"; {plugin.install_hint}" if plugin.install_hint and error.is_not_found else ""
        raise _refused(plugin, f"{error}{hint}") from error
    if finished.code != 0:
        output = finished.err.decode("utf-8", "replace").strip()[:_SHOWN]
        raise _refused(plugin, f"exit status {finished.code}" + (f": {output}" if output else ""))
    return parse_credential(finished.out, plugin)


def parse_credential(data: bytes, plugin: ExecPlugin) -> PluginCredential:
    """Parse the output of a plugin. Raises ApiError, which contains nothing of the output."""
    try:
        found = msgspec.json.decode(data, type=_Credential)
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise _refused(plugin, "printed no ExecCredential") from None
    if (found.kind, found.apiVersion) != ("ExecCredential", plugin.api_version):
        raise _refused(plugin, f"printed another kind or version than ExecCredential of {plugin.api_version}")
    status = found.status or _Status()
    cert, key = status.clientCertificateData or "", status.clientKeyData or ""
    if bool(cert) != bool(key):
        raise _refused(plugin, "printed a certificate without its key, or a key alone")
    if not status.token and not cert:
        raise _refused(plugin, "printed neither a token nor a certificate")
    try:
        expires_at = parse_time(status.expirationTimestamp) if status.expirationTimestamp else None
    except ValueError:
        raise _refused(plugin, "printed an expirationTimestamp that is no time") from None
    return PluginCredential(status.token or "", cert.encode(), key.encode(), expires_at)


def _refused(plugin: ExecPlugin, what: str) -> ApiError:
    return ApiError(0, "Credentials", f"exec plugin {plugin.command}: {what}")
