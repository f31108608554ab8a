"""Finds the process that serves a plugin's socket. Never blocks. Source: unix(7), SO_PEERCRED."""

from __future__ import annotations

import errno
import os
import socket
import struct

from pykubelet.edges.host.proc.kernel_waits import ProcessState, process_state

_CREDENTIALS = struct.Struct("iII")


def serving_process(path: str) -> ProcessState | str:
    """The process that listens on a unix socket, or in words why there is none. It sees a connection that is closed at once."""
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as probe:
            probe.connect(path)
            answer = probe.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    except OSError as error:
        if error.errno == errno.EAGAIN:
            return f"{path} accepts no more connections: its process does not answer"
        if error.errno == errno.ECONNREFUSED:
            return f"nothing listens on {path}: its process does not run"
        return f"{path} cannot be reached: {os.strerror(error.errno) if error.errno else error}"
    pid = _CREDENTIALS.unpack(answer)[0]
    return process_state(pid) or f"{path} is served by a process that cannot be seen from here"
