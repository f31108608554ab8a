"""Keys are made by a process that runs nothing but our own modules."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from pykubelet.base.api.key_types import KEY_TYPES
from pykubelet.edges.identity.keys import make_stub_requests
from pykubelet.edges.identity.make_keys import STUB_KEYS, public_der

_AGENT = """
import asyncio
from pykubelet.edges.identity.keys import make_self_signed
print(asyncio.run(make_self_signed("n", ("n",), ())).certificate)
"""


@pytest.mark.parametrize(
    ("options", "variables"),
    [(("-P",), {}), (("-I",), {}), (("-I",), {"PYTHONPATH": "."}), (("-E", "-P"), {"PYTHONPATH": "."})],
)
def test_modules_that_the_agent_would_not_import_are_not_run(
    tmp_path: Path, options: tuple[str, ...], variables: dict[str, str]
) -> None:
    """Root may start the agent in a directory where others write, and with variables that the agent ignores."""
    marker = tmp_path / "ran"
    for name in ("base64.py", "json.py", "datetime.py", "cryptography.py", "sitecustomize.py", "pykubelet.py"):
        (tmp_path / name).write_text(f"open({str(marker)!r}, 'a').write('{name} ')\n")
    ended = subprocess.run(
        [sys.executable, *options, "-c", _AGENT],
        cwd=tmp_path,
        env={**os.environ, **{name: str(tmp_path / value) for name, value in variables.items()}},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert not marker.exists(), marker.read_text()
    assert ended.stdout.startswith("-----BEGIN CERTIFICATE-----"), ended.stderr


async def test_stub_requests_prove_possession_of_keys_of_every_type() -> None:
    kinds = list(KEY_TYPES)
    assert set(STUB_KEYS) == set(kinds)
    stubs = await make_stub_requests(kinds)
    found = {}
    for kind, stub in zip(kinds, stubs, strict=True):
        request = x509.load_der_x509_csr(stub.request)
        assert request.is_signature_valid
        assert list(request.subject) == [] and list(request.extensions) == []
        assert stub.key.startswith("-----BEGIN PRIVATE KEY-----\n")  # PKCS #8
        key: Any = load_pem_private_key(stub.key.encode(), None)
        assert public_der(key.public_key()) == public_der(request.public_key())
        assert stub.key not in repr(stub)
        curve = getattr(key, "curve", None)
        found[kind] = curve.name if curve is not None else f"{type(key).__name__} {getattr(key, 'key_size', '')}"
    assert {kind: text.removesuffix(" ") for kind, text in found.items()} == {
        "ECDSAP256": "secp256r1",
        "ECDSAP384": "secp384r1",
        "ECDSAP521": "secp521r1",
        "ED25519": "Ed25519PrivateKey",
        "RSA3072": "RSAPrivateKey 3072",
        "RSA4096": "RSAPrivateKey 4096",
    }
