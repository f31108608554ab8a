"""Certificates and kubeconfigs of a cluster of our own: one authority, what it signs, and the files that name them.

Made by the openssl program; valid for a year; a file that is there is kept.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path

from testbed.host import TestbedError

_DAYS = "365"
_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")


def make_authority(folder: Path) -> Path:
    """`ca.crt` and `ca.key` in `folder`; returns the certificate's path."""
    certificate = folder / "ca.crt"
    if not certificate.exists():
        folder.mkdir(parents=True, exist_ok=True)
        more = ["-addext", "basicConstraints=critical,CA:TRUE", "-addext", "keyUsage=critical,keyCertSign,cRLSign"]
        subject = "/CN=testbed"
        _openssl("req", "-x509", *_KEY, *_new(folder / "ca"), "-days", _DAYS, "-subj", subject, *more)
    return certificate


def issue(folder: Path, name: str, user: str, groups: Sequence[str] = (), addresses: Sequence[str] = ()) -> Path:
    """`<name>.crt` and `<name>.key` in the authority's `folder`; returns the path without ending.

    A client certificate of `user` in `groups`; with `addresses` (DNS:localhost, IP:127.0.0.1) it serves there, too.
    """
    path = folder / name
    if not path.with_suffix(".crt").exists():
        subject = "".join(f"/O={group}" for group in groups) + f"/CN={user}"
        purposes = "clientAuth,serverAuth" if addresses else "clientAuth"
        extensions = f"basicConstraints=CA:FALSE\nkeyUsage=digitalSignature\nextendedKeyUsage={purposes}\n"
        if addresses:
            extensions += f"subjectAltName={','.join(addresses)}\n"
        (folder / f"{name}.ext").write_text(extensions)
        request = ["-subj", subject, "-keyout", f"{path}.key", "-out", f"{path}.csr"]
        _openssl("req", "-new", *_KEY, *request)
        signer = ["-CA", str(folder / "ca.crt"), "-CAkey", str(folder / "ca.key"), "-CAcreateserial", "-days", _DAYS]
        signed = ["-in", f"{path}.csr", "-extfile", f"{path}.ext", "-out", f"{path}.crt"]
        _openssl("x509", "-req", *signer, *signed)
    return path


def make_signing_key(path: Path) -> Path:
    """An RSA key at `path` for service account tokens; the public one beside it (.pub)."""
    if not path.exists():
        _openssl("genrsa", "-out", str(path), "2048")
        _openssl("rsa", "-in", str(path), "-pubout", "-out", f"{path}.pub")
    return path


def write_kubeconfig(path: Path, server: str, authority: Path, user: dict[str, str]) -> Path:
    """A kubeconfig (JSON is YAML) for `user`, the fields of a kubeconfig's user entry."""
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "testbed", "cluster": {"server": server, "certificate-authority": str(authority)}}],
        "users": [{"name": "testbed", "user": user}],
        "contexts": [{"name": "testbed", "context": {"cluster": "testbed", "user": "testbed"}}],
        "current-context": "testbed",
    }
    part = path.with_name(f"{path.name}.part")
    part.touch(0o600)
    part.write_text(json.dumps(document, indent=2) + "\n")
    part.replace(path)
    return path


def _new(path: Path) -> list[str]:
    return ["-keyout", f"{path}.key", "-out", f"{path}.crt"]


def _openssl(*arguments: str) -> None:
    try:
        subprocess.run(
            ["openssl", *arguments], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=True, umask=0o077
        )
    except FileNotFoundError as error:
        raise TestbedError("openssl is missing: install the Debian package openssl") from error
    except subprocess.CalledProcessError as error:
        raise TestbedError(f"openssl {' '.join(arguments[:2])}: {error.stderr}") from error
