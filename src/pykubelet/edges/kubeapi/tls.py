"""TLS contexts for an API server, made from PEM text.

OpenSSL can load a certificate and key only from files. Text in memory is passed through an anonymous file of the kernel, so
that no key is written to a disk.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Iterator
from contextlib import contextmanager


def client_context(ca: bytes, insecure: bool, cert: bytes, key: bytes) -> ssl.SSLContext:
    """A context that trusts `ca` (empty: the machine's own authorities) and presents `cert`, if there is one.

    Raises ssl.SSLError if the text is not usable PEM or if certificate and key do not match.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    if insecure:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    elif ca:
        context.load_verify_locations(cadata=ca.decode("latin-1"))
    else:
        context.load_default_certs()
    if cert:
        with in_memory(cert) as cert_path, in_memory(key) as key_path:
            context.load_cert_chain(cert_path, key_path)
    return context


@contextmanager
def in_memory(data: bytes) -> Iterator[str]:
    """A path at which `data` can be read within the block."""
    descriptor = os.memfd_create("pem", os.MFD_CLOEXEC)
    try:
        os.write(descriptor, data)
        yield f"/proc/self/fd/{descriptor}"
    finally:
        os.close(descriptor)
