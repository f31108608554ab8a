"""Certificates for tests, made by openssl: an authority, and what it signs."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Signed:
    """PEM files."""

    cert: Path
    key: Path

    @property
    def both(self) -> bytes:
        return self.cert.read_bytes() + self.key.read_bytes()


def _run(*argv: str | Path) -> None:
    subprocess.run([str(part) for part in argv], check=True, capture_output=True, timeout=20)


def _key(path: Path) -> None:
    _run("openssl", "ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", path)


@dataclass(frozen=True, slots=True)
class Authority:
    """A certificate authority in a folder."""

    folder: Path
    name: str = "ca"

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        _key(self.folder / f"{self.name}.key")
        _run(
            *("openssl", "req", "-x509", "-new", "-key", self.folder / f"{self.name}.key", "-days", "30"),
            *("-subj", f"/CN={self.name}", "-out", self.cert),
        )

    @property
    def cert(self) -> Path:
        return self.folder / f"{self.name}.pem"

    def sign(self, name: str, subject: str, *, days: int = 1, addresses: str = "IP:127.0.0.1") -> Signed:
        """A certificate for `subject` (`/O=..../CN=...`), with its key."""
        made = Signed(self.folder / f"{name}.pem", self.folder / f"{name}.key")
        request = self.folder / f"{name}.csr"
        extensions = self.folder / f"{name}.ext"
        _key(made.key)
        _run("openssl", "req", "-new", "-key", made.key, "-subj", subject, "-out", request)
        extensions.write_text(f"subjectAltName={addresses}\n")
        self.sign_request(request, made.cert, days=days, extensions=extensions)
        return made

    def sign_request(self, request: Path, into: Path, *, days: int = 1, extensions: Path | None = None) -> None:
        sign_request(self.cert, self.folder / f"{self.name}.key", request, into, days=days, extensions=extensions)


def sign_request(
    authority: Path, key: Path, request: Path, into: Path, *, days: int = 1, extensions: Path | None = None
) -> None:
    """What a signer does; without `extensions` those that are asked for are given."""
    more = ("-extfile", extensions) if extensions is not None else ("-copy_extensions", "copy")
    _run(
        *("openssl", "x509", "-req", "-in", request, "-CA", authority, "-CAkey", key),
        *("-CAcreateserial", "-days", str(days), "-out", into, *more),
    )
