"""How commands such as `pykubelet local-api status` ask the running API: as its administrator, with the files of its folder."""

from __future__ import annotations

import ssl
from pathlib import Path

from pykubelet.base.api.documents import load_document
from pykubelet.edges.host.fs import files
from pykubelet_local_api.access.place import own_client
from pykubelet_local_api.client import OwnClient

_KUBECONFIG_BYTES = 1 << 20


def running_api(folder: Path) -> OwnClient:
    """A client of the API with this folder. Raises HostError, OSError or ValueError if the files cannot be used."""
    config = load_document(files.read_bytes(f"{folder}/admin.kubeconfig", _KUBECONFIG_BYTES))
    try:
        url = config["clusters"][0]["cluster"]["server"]
    except (KeyError, IndexError, TypeError) as error:
        raise ValueError("admin.kubeconfig names no server") from error
    tls = ssl.create_default_context(cafile=f"{folder}/ca.crt")
    tls.load_cert_chain(*own_client(folder))
    return OwnClient(url, tls)
