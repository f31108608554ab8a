"""The first steps of the start, which need little of the program: the lock, the port, and a process that makes the certificates.

The rest of the program is imported while that process runs, on another core.
"""

from __future__ import annotations

import os
import socket
from contextlib import ExitStack
from pathlib import Path

from pykubelet.base.kit.values import Value
from pykubelet.edges.host.fs import files
from pykubelet.edges.host.fs.errors import HostError
from pykubelet_local_api.access.files import AccessError, make_folder
from pykubelet_local_api.access.place import ApiPlace
from pykubelet_local_api.access.preparing import Preparation
from pykubelet_local_api.options import LocalApiOptions


class LocalApiStartError(Exception):
    """The program cannot start. The text is for the administrator."""


class BegunStart(Value):
    """What was opened. `opened` closes it."""

    place: ApiPlace
    listening: socket.socket
    preparation: Preparation
    opened: ExitStack


def begin(options: LocalApiOptions, now: float) -> BegunStart:
    """Take the first steps. Raises LocalApiStartError. Blocks."""
    with ExitStack() as opened:
        try:
            make_folder(Path(options.data_dir))
            lock = files.lock_file(f"{options.data_dir}/lock")
            if lock is None:
                raise LocalApiStartError(f"another process uses {options.data_dir}")
            opened.callback(os.close, lock)
            listening = opened.enter_context(listening_socket("127.0.0.1", options.port))
            place = ApiPlace(
                Path(options.data_dir),
                f"https://127.0.0.1:{listening.getsockname()[1]}",
                options.node_name,
                (socket.gethostname().lower(),),
                (options.service_address,) if options.service_address else (),
            )
            preparation = Preparation(place, now)
            opened.callback(preparation.stop)
        except (AccessError, HostError) as error:
            raise LocalApiStartError(str(error)) from error
        return BegunStart(place, listening, preparation, opened.pop_all())


def listening_socket(address: str, port: int) -> socket.socket:
    """A listening socket. Raises LocalApiStartError."""
    listening = socket.socket()
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((address, port))
        listening.listen(512)
    except OSError as error:
        listening.close()
        raise LocalApiStartError(f"cannot listen on {address}:{port}: {error.strerror}") from error
    return listening
