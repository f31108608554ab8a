"""Reads kubeconfig files: how to reach an API server and with which credentials.

Owns: the file format, the choice of the current context, and relative paths (relative to the file's own directory).
Does not read the certificate, key and token files that it names: they change while the agent runs, and `credentials.py`
reads them when they are used.

Source: the Kubernetes documentation "kubeconfig (v1)" and "client authentication (v1)".
"""

from __future__ import annotations

import base64
import binascii
import os
from typing import Any, ClassVar
from urllib.parse import urlsplit

import msgspec

from pykubelet.base.api.codec import DecodeError, from_object
from pykubelet.base.api.document import DocumentError
from pykubelet.base.api.documents import read_document
from pykubelet.base.kit.values import RedactedValue, Value
from pykubelet.edges.host.fs.errors import HostError
from pykubelet.edges.host.fs.files import read_bytes

_LIMIT = 10 << 20
EXEC_VERSIONS = ("client.authentication.k8s.io/v1", "client.authentication.k8s.io/v1beta1")
_SERVER_SCHEMES = ("http", "https")
_PROXY_SCHEMES = ("http", "https", "socks5")


class KubeconfigError(Exception):
    """A kubeconfig cannot be used: the file, the field in it (empty for the whole file), and the problem."""

    def __init__(self, file: str, field_path: str, what: str) -> None:
        super().__init__(f"{file}: {field_path}: {what}" if field_path else f"{file}: {what}")


class Pem(RedactedValue):
    """PEM text in the kubeconfig (`data`, which has precedence) or in a file of its own; both may be empty."""

    hidden: ClassVar = ("data",)
    file: str = ""
    data: bytes = b""

    def __bool__(self) -> bool:
        return bool(self.file or self.data)


class ExecPlugin(Value):
    """A program that prints credentials. `cluster`: the cluster information that it gets with `provideClusterInfo`."""

    command: str
    args: tuple[str, ...] = ()
    env: tuple[tuple[str, str], ...] = ()
    api_version: str = EXEC_VERSIONS[0]
    install_hint: str = ""
    cluster: dict[str, Any] | None = None


class ClusterAccess(RedactedValue):
    """One API server and one identity. `server`: a URL without a trailing slash. Paths are absolute.

    `headers`: sent with every request (impersonation). `origin`: the path of the kubeconfig.
    """

    hidden: ClassVar = ("token", "basic")
    server: str
    ca: Pem = Pem()
    insecure: bool = False
    server_name: str = ""
    proxy: str = ""
    client_cert: Pem = Pem()
    client_key: Pem = Pem()
    token: str = ""
    token_file: str = ""
    basic: tuple[str, str] | None = None
    plugin: ExecPlugin | None = None
    headers: tuple[tuple[str, str], ...] = ()
    origin: str = ""


_Name = msgspec.field  # for fields whose names are not valid in Python


class _Cluster(msgspec.Struct, frozen=True):
    server: str = ""
    tlsServerName: str = _Name(default="", name="tls-server-name")
    insecure: bool = _Name(default=False, name="insecure-skip-tls-verify")
    ca: str = _Name(default="", name="certificate-authority")
    caData: str = _Name(default="", name="certificate-authority-data")
    proxyUrl: str = _Name(default="", name="proxy-url")
    extensions: tuple[dict[str, Any], ...] = ()


class _Variable(msgspec.Struct, frozen=True):
    name: str
    value: str


class _Exec(msgspec.Struct, frozen=True):
    command: str = ""
    args: tuple[str, ...] = ()
    env: tuple[_Variable, ...] = ()
    apiVersion: str = ""
    installHint: str = ""
    provideClusterInfo: bool = False
    interactiveMode: str = ""


class _User(msgspec.Struct, frozen=True):
    cert: str = _Name(default="", name="client-certificate")
    certData: str = _Name(default="", name="client-certificate-data")
    key: str = _Name(default="", name="client-key")
    keyData: str = _Name(default="", name="client-key-data")
    token: str = ""
    tokenFile: str = ""
    username: str = ""
    password: str = ""
    act: str = _Name(default="", name="as")
    actUid: str = _Name(default="", name="as-uid")
    actGroups: tuple[str, ...] = _Name(default=(), name="as-groups")
    actExtra: dict[str, tuple[str, ...]] = _Name(default={}, name="as-user-extra")
    authProvider: dict[str, Any] | None = _Name(default=None, name="auth-provider")
    exec: _Exec | None = None


class _Context(msgspec.Struct, frozen=True):
    cluster: str = ""
    user: str = ""


class _NamedCluster(msgspec.Struct, frozen=True):
    name: str
    cluster: _Cluster = _Cluster()


class _NamedUser(msgspec.Struct, frozen=True):
    name: str
    user: _User = _User()


class _NamedContext(msgspec.Struct, frozen=True):
    name: str
    context: _Context = _Context()


class _Config(msgspec.Struct, frozen=True):
    kind: str = "Config"
    apiVersion: str = "v1"
    clusters: tuple[_NamedCluster, ...] = ()
    users: tuple[_NamedUser, ...] = ()
    contexts: tuple[_NamedContext, ...] = ()
    currentContext: str = _Name(default="", name="current-context")


def load_access(path: str) -> ClusterAccess:
    """Read the current context of the kubeconfig at `path`. Raises KubeconfigError."""
    try:
        data = read_bytes(path, _LIMIT)
    except HostError as error:
        raise KubeconfigError(path, "", str(error)) from error
    return parse_access(data, os.path.abspath(path))


def parse_access(data: bytes, path: str) -> ClusterAccess:
    """As `load_access`, from the bytes of the file. Paths are relative to the directory of `path`. Raises KubeconfigError."""
    try:
        document = read_document(data).value
        config = from_object(_Config, {} if document is None else document)
    except DocumentError as error:
        raise KubeconfigError(path, "", str(error)) from error
    except DecodeError as error:
        raise KubeconfigError(path, error.path, error.reason) from error
    if (config.kind, config.apiVersion) != ("Config", "v1"):
        raise KubeconfigError(path, "kind", f"expected Config of v1, got {config.kind} of {config.apiVersion}")
    return _Reader(path).access(config)


class _Reader:
    """Reads and checks one file. Every error names the file."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._folder = os.path.dirname(path)

    def access(self, config: _Config) -> ClusterAccess:
        name = config.currentContext
        if not name:
            raise self._error("current-context", "is missing; name the context to use")
        context = next((item.context for item in config.contexts if item.name == name), None)
        if context is None:
            raise self._error("current-context", f'context "{name}" does not exist')
        cluster = next((item.cluster for item in config.clusters if item.name == context.cluster), None)
        if cluster is None:
            raise self._error(f"contexts[{name}].cluster", f'cluster "{context.cluster}" does not exist')
        user = next((item.user for item in config.users if item.name == context.user), None)
        if user is None and context.user:
            raise self._error(f"contexts[{name}].user", f'user "{context.user}" does not exist')
        return self._joined(cluster, f"clusters[{context.cluster}]", user or _User(), f"users[{context.user}]")

    def _joined(self, cluster: _Cluster, at: str, user: _User, user_at: str) -> ClusterAccess:
        ca = self._pem(cluster.ca, cluster.caData, f"{at}.certificate-authority")
        if cluster.insecure and ca:
            what = "specifying a root certificates file with the insecure flag is not allowed"
            raise self._error(f"{at}.insecure-skip-tls-verify", what)
        if user.authProvider is not None:
            raise self._error(f"{user_at}.auth-provider", "is no longer supported; use exec")
        cert = self._pem(user.cert, user.certData, f"{user_at}.client-certificate")
        key = self._pem(user.key, user.keyData, f"{user_at}.client-key")
        if bool(cert) != bool(key):
            missing = "client-key" if cert else "client-certificate"
            raise self._error(f"{user_at}.{missing}", "a client certificate and its key belong together")
        if user.username and (user.token or user.tokenFile):
            raise self._error(user_at, "more than one authentication method: token and username")
        return ClusterAccess(
            server=self._server(cluster.server, f"{at}.server"),
            ca=ca,
            insecure=cluster.insecure,
            server_name=cluster.tlsServerName,
            proxy=self._proxy(cluster.proxyUrl, f"{at}.proxy-url"),
            client_cert=cert,
            client_key=key,
            token=user.token,
            token_file=self._absolute(user.tokenFile),
            basic=(user.username, user.password) if user.username else None,
            plugin=self._plugin(user.exec, cluster, ca, f"{user_at}.exec") if user.exec is not None else None,
            headers=_impersonation(user),
            origin=self._path,
        )

    def _server(self, text: str, at: str) -> str:
        if not text:
            raise self._error(at, "is missing")
        parts = urlsplit(text if "://" in text else f"http://{text}")
        if parts.scheme not in _SERVER_SCHEMES or not parts.hostname:
            raise self._error(at, f'"{text}" is no http or https URL')
        return parts.geturl().rstrip("/")

    def _proxy(self, text: str, at: str) -> str:
        if text and urlsplit(text).scheme not in _PROXY_SCHEMES:
            raise self._error(at, "only http, https and socks5 proxies can be used")
        return text

    def _pem(self, file: str, data: str, at: str) -> Pem:
        if not data:
            return Pem(self._absolute(file))
        try:
            return Pem(data=base64.b64decode("".join(data.split()), validate=True))
        except binascii.Error as error:
            raise self._error(f"{at}-data", "is not base64") from error

    def _plugin(self, found: _Exec, cluster: _Cluster, ca: Pem, at: str) -> ExecPlugin:
        if not found.command:
            raise self._error(f"{at}.command", "is missing")
        if found.apiVersion not in EXEC_VERSIONS:
            raise self._error(f"{at}.apiVersion", f"must be {' or '.join(EXEC_VERSIONS)}")
        if found.interactiveMode == "Always":
            raise self._error(f"{at}.interactiveMode", "must not be Always: the kubelet has no terminal")
        info = None
        if found.provideClusterInfo:
            info = self._cluster_info(cluster, ca)
        command = self._absolute(found.command) if "/" in found.command else found.command
        env = tuple((variable.name, variable.value) for variable in found.env)
        return ExecPlugin(command, found.args, env, found.apiVersion, found.installHint, info)

    def _cluster_info(self, cluster: _Cluster, ca: Pem) -> dict[str, Any]:
        """The cluster information for a plugin (`ExecCredential.spec.cluster`). The CA is always given as data."""
        data = ca.data
        if ca.file:
            try:
                data = read_bytes(ca.file, _LIMIT)
            except HostError as error:
                raise self._error("certificate-authority", str(error)) from error
        name = "client.authentication.k8s.io/exec"
        extension = next((item.get("extension") for item in cluster.extensions if item.get("name") == name), None)
        info = {
            "server": cluster.server,
            "tls-server-name": cluster.tlsServerName,
            "insecure-skip-tls-verify": cluster.insecure,
            "certificate-authority-data": base64.b64encode(data).decode() if data else "",
            "proxy-url": cluster.proxyUrl,
        }
        return {**{key: value for key, value in info.items() if value}, "config": extension}

    def _absolute(self, path: str) -> str:
        return os.path.normpath(os.path.join(self._folder, path)) if path else ""

    def _error(self, at: str, what: str) -> KubeconfigError:
        return KubeconfigError(self._path, at, what)


def _impersonation(user: _User) -> tuple[tuple[str, str], ...]:
    found = [("Impersonate-User", user.act)] if user.act else []
    if user.actUid:
        found.append(("Impersonate-Uid", user.actUid))
    found += [("Impersonate-Group", group) for group in user.actGroups]
    found += [(f"Impersonate-Extra-{key}", value) for key, values in user.actExtra.items() for value in values]
    return tuple(found)
