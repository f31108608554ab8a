"""A real registry on loopback (Debian's docker-registry) for tests of image pulls: plain, with TLS, with a password, slow.

Owns its process and its folder. How the runtime reaches it is `containerd.trust_registry`.
"""

from __future__ import annotations

import base64
import contextlib
import ctypes
import hashlib
import json
import os
import re
import shutil
import socket
import ssl
import subprocess
import tarfile
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from testbed import host
from testbed.host import TestbedError

_MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"
_CONFIG = "application/vnd.docker.container.image.v1+json"
_LAYER = "application/vnd.docker.image.rootfs.diff.tar"


@dataclass(frozen=True, slots=True)
class Registry:
    """A running registry: `address` (127.0.0.1:port) as image names have it, `url` as hosts.toml has it."""

    address: str
    url: str
    pid: int
    log_file: Path
    ca_file: Path | None = None
    login: tuple[str, str] | None = None


@contextlib.contextmanager
def serving(folder: Path, login: tuple[str, str] | None = None, tls: bool = False) -> Iterator[Registry]:
    """A registry that runs while the block does. Its blobs are kept in `folder`, so a second run serves them again."""
    registry = start(folder, login, tls)
    try:
        yield registry
    finally:
        stop(registry)


def start(folder: Path, login: tuple[str, str] | None = None, tls: bool = False) -> Registry:
    """Start a registry on a free port; `login` (user, password) makes it ask for one, `tls` gives it a certificate of its own."""
    program = shutil.which("docker-registry")
    if program is None:
        raise TestbedError("docker-registry is missing: install the Debian package docker-registry")
    folder.mkdir(parents=True, exist_ok=True)
    config: dict[str, object] = {
        "version": "0.1",
        "log": {"level": "info", "formatter": "text"},
        "storage": {"filesystem": {"rootdirectory": str(folder / "blobs")}},
    }
    http: dict[str, object] = {"addr": "127.0.0.1:0", "secret": "testbed"}
    ca_file = None
    if tls:
        ca_file = _make_certificate(folder)
        http["tls"] = {"certificate": str(ca_file), "key": str(folder / "key.pem")}
    if login is not None:
        (folder / "htpasswd").write_text(f"{login[0]}:{_bcrypt(login[1])}\n")
        config["auth"] = {"htpasswd": {"realm": "testbed", "path": str(folder / "htpasswd")}}
    (folder / "config.json").write_text(json.dumps(config | {"http": http}))  # JSON is YAML
    log = folder / "registry.log"
    log.unlink(missing_ok=True)
    # the program prefers REGISTRY_* variables to its file
    env = {name: value for name, value in os.environ.items() if not name.startswith("REGISTRY_")}
    pid = host.spawn([program, "serve", str(folder / "config.json")], log, env)

    def port() -> str | None:
        found = re.search(r"listening on 127\.0\.0\.1:(\d+)", log.read_text()) if log.exists() else None
        return found.group(1) if found else None

    if not host.wait_until(lambda: port() is not None or host.is_gone(pid), 60) or port() is None:
        host.end_process(pid, 1)
        raise TestbedError(f"docker-registry does not start:\n{log.read_text() if log.exists() else ''}")
    address = f"127.0.0.1:{port()}"
    return Registry(address, f"{'https' if tls else 'http'}://{address}", pid, log, ca_file, login)


def stop(registry: Registry) -> None:
    """End the registry; its blobs stay."""
    host.end_process(registry.pid, 5)


def _make_certificate(folder: Path) -> Path:
    certificate = folder / "cert.pem"
    command = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:P-256",
        "-nodes",
        "-days",
        "2",
    ]
    command += ["-subj", "/CN=testbed registry", "-addext", "subjectAltName=IP:127.0.0.1"]
    command += ["-keyout", str(folder / "key.pem"), "-out", str(certificate)]
    try:
        subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=True)
    except FileNotFoundError as error:
        raise TestbedError("openssl is missing: install the Debian package openssl") from error
    except subprocess.CalledProcessError as error:
        raise TestbedError(f"openssl: {error.stderr}") from error
    return certificate


def _bcrypt(password: str) -> str:
    """The only kind of hash the registry takes; from the C library, Python's `crypt` is gone in 3.13."""
    crypt = ctypes.CDLL("libcrypt.so.1").crypt
    crypt.restype = ctypes.c_char_p
    crypt.argtypes = (ctypes.c_char_p, ctypes.c_char_p)
    alphabet = "./ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"
    # 22 characters hold 128 bits, so of the last one only the two highest bits count
    salt = "".join(alphabet[byte % 64] for byte in os.urandom(21)) + "."
    hashed: bytes | None = crypt(password.encode(), f"$2b$04${salt}".encode())
    if hashed is None or not hashed.startswith(b"$2b$"):
        raise TestbedError("the C library cannot make bcrypt hashes")
    return hashed.decode()


def push(registry: Registry, archive: Path, name: str) -> str:
    """Upload the docker-archive `archive` as `name` (repository:tag); returns the image to pull it by, with its digest.

    The tagged reference to pull is `<registry.address>/<name>`.
    """
    repository, _, tag = name.partition(":")
    with tarfile.open(archive) as tar:

        def member(path: str) -> bytes:
            stream = tar.extractfile(path)
            assert stream is not None
            return stream.read()

        (entry,) = json.loads(member("manifest.json"))
        config, layers = member(entry["Config"]), [member(path) for path in entry["Layers"]]
    for blob in (config, *layers):
        _upload(registry, repository, blob)
    manifest = {
        "schemaVersion": 2,
        "mediaType": _MANIFEST,
        "config": _descriptor(_CONFIG, config),
        "layers": [_descriptor(_LAYER, layer) for layer in layers],
    }
    raw = json.dumps(manifest).encode()
    _request(registry, "PUT", f"{registry.url}/v2/{repository}/manifests/{tag}", raw, _MANIFEST)
    return f"{registry.address}/{repository}@{_digest(raw)}"


def _digest(data: bytes) -> str:
    return "sha256:" + hashlib.sha256(data).hexdigest()


def _descriptor(media_type: str, data: bytes) -> dict[str, object]:
    return {"mediaType": media_type, "size": len(data), "digest": _digest(data)}


def _upload(registry: Registry, repository: str, blob: bytes) -> None:
    location = _request(registry, "POST", f"{registry.url}/v2/{repository}/blobs/uploads/", b"", "")
    if location.startswith("/"):
        location = registry.url + location
    separator = "&" if "?" in location else "?"
    _request(registry, "PUT", f"{location}{separator}digest={_digest(blob)}", blob, "application/octet-stream")


def _request(registry: Registry, method: str, url: str, body: bytes, content_type: str) -> str:
    """The answer's Location header."""
    request = urllib.request.Request(url, data=body, method=method)
    if content_type:
        request.add_header("Content-Type", content_type)
    if registry.login is not None:
        token = base64.b64encode(":".join(registry.login).encode()).decode()
        request.add_header("Authorization", f"Basic {token}")
    context = ssl.create_default_context(cafile=str(registry.ca_file)) if registry.ca_file else None
    handlers: list[urllib.request.BaseHandler] = [urllib.request.ProxyHandler({})]
    if context is not None:
        handlers.append(urllib.request.HTTPSHandler(context=context))
    try:
        with urllib.request.build_opener(*handlers).open(request, timeout=60) as answer:
            return str(answer.headers.get("Location", ""))
    except urllib.error.HTTPError as error:
        with error:
            raise TestbedError(f"{method} {url}: {error.code} {error.read().decode(errors='replace')}") from error


@contextlib.contextmanager
def slowed(registry: Registry, delay_s: float, opened: threading.Event | None = None) -> Iterator[str]:
    """An address (127.0.0.1:port) in front of a plain registry where every connection waits `delay_s` first, or until `opened`."""
    listener = socket.create_server(("127.0.0.1", 0))
    ended, free = threading.Event(), opened or threading.Event()

    def relay(client: socket.socket) -> None:
        with client:
            free.wait(delay_s)
            if ended.is_set():
                return
            target, _, port = registry.address.partition(":")
            try:
                with socket.create_connection((target, int(port))) as server:
                    back = threading.Thread(target=_copy, args=(server, client), daemon=True)
                    back.start()
                    _copy(client, server)
                    back.join()
            except OSError:  # the registry is gone: so is this connection
                return

    def accept() -> None:
        while not ended.is_set():
            try:
                client, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=relay, args=(client,), daemon=True).start()

    acceptor = threading.Thread(target=accept, daemon=True)
    acceptor.start()
    try:
        yield f"127.0.0.1:{listener.getsockname()[1]}"
    finally:
        ended.set()
        free.set()
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        acceptor.join(5)


def _copy(source: socket.socket, target: socket.socket) -> None:
    try:
        while data := source.recv(65536):
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)
    except OSError:  # either side hung up
        return
