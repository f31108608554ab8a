"""Kubeconfig files with everything inside: server, trust, certificate and key. Pure.

They are JSON, which every reader of YAML reads: the agent needs no library for YAML then, nearly a MiB of memory.
Source: "Organizing Cluster Access Using kubeconfig Files".
"""

from __future__ import annotations

import base64

import msgspec

from pykubelet_local_api.access.certificates import KeyPair


def kubeconfig(server: str, authority: bytes, user: str, pair: KeyPair) -> bytes:
    """The text of the file. `server`: the URL. `user`: a name for people."""
    context = f"{user}@local"
    found = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [
            {"name": "local", "cluster": {"server": server, "certificate-authority-data": _encoded(authority)}}
        ],
        "users": [
            {
                "name": user,
                "user": {
                    "client-certificate-data": _encoded(pair.certificate),
                    "client-key-data": _encoded(pair.key),
                },
            }
        ],
        "contexts": [{"name": context, "context": {"cluster": "local", "user": user}}],
        "current-context": context,
    }
    return msgspec.json.format(msgspec.json.encode(found)) + b"\n"


def parse_kubeconfig(text: bytes) -> tuple[str, bytes, KeyPair]:
    """Server, authority and pair of a file that `kubeconfig` has made. Raises ValueError for any other."""
    try:
        found = msgspec.json.decode(text)
        cluster, user = found["clusters"][0]["cluster"], found["users"][0]["user"]
        pair = KeyPair(_decoded(user["client-certificate-data"]), _decoded(user["client-key-data"]))
        return str(cluster["server"]), _decoded(cluster["certificate-authority-data"]), pair
    except (msgspec.DecodeError, LookupError, TypeError) as error:
        raise ValueError("not a kubeconfig file of this program") from error


def _encoded(value: bytes) -> str:
    return base64.b64encode(value).decode()


def _decoded(text: str) -> bytes:
    return base64.b64decode(text, validate=True)
