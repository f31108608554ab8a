"""Kubeconfig files with everything inside: server, trust, certificate and key. Pure.

Source: "Organizing Cluster Access Using kubeconfig Files".
"""

from __future__ import annotations

import base64

from pykubelet_local_api.access.certificates import KeyPair

_FIELDS = ("server", "certificate-authority-data", "client-certificate-data", "client-key-data")


def kubeconfig(server: str, authority: bytes, user: str, pair: KeyPair) -> bytes:
    """The text of the file. `server`: the URL. `user`: a name for people."""
    return f"""apiVersion: v1
kind: Config
clusters:
- name: local
  cluster:
    server: "{server}"
    certificate-authority-data: {_encoded(authority)}
users:
- name: "{user}"
  user:
    client-certificate-data: {_encoded(pair.certificate)}
    client-key-data: {_encoded(pair.key)}
contexts:
- name: "{user}@local"
  context:
    cluster: local
    user: "{user}"
current-context: "{user}@local"
""".encode()


def parse_kubeconfig(text: bytes) -> tuple[str, bytes, KeyPair]:
    """Server, authority and pair of a file that `kubeconfig` has made. Raises ValueError for any other."""
    lines = (line.strip().partition(": ") for line in text.decode().splitlines())
    found = {key: value.strip('"') for key, _, value in lines if key in _FIELDS}
    if len(found) != len(_FIELDS):
        raise ValueError("not a kubeconfig file of this program")
    authority, certificate, key = (base64.b64decode(found[name], validate=True) for name in _FIELDS[1:])
    return found["server"], authority, KeyPair(certificate, key)


def _encoded(value: bytes) -> str:
    return base64.b64encode(value).decode()
