"""Has the files of access made and renewed, in a short-lived process: it needs `cryptography`, which the running program does not.

Blocks. The process is started only when something is due: when a file has changed, or a certificate's time has come.
"""

from __future__ import annotations

import hashlib
import subprocess
from pathlib import Path

import msgspec

from pykubelet.edges.host.fs.errors import HostError
from pykubelet.edges.host.services.process import kill_group, python_module, start_program
from pykubelet_local_api.access.files import AccessError, make_folder, read_file
from pykubelet_local_api.access.place import TOKEN_KEY, AccessFiles, ApiPlace, files_in

#: A busy machine makes keys and certificates within seconds.
DEADLINE_S = 60.0
_CHILD = "pykubelet_local_api.access.make_files"


class Question(msgspec.Struct, frozen=True):
    """What the process is asked: an `ApiPlace` with its folder as text, and the wall seconds."""

    folder: str
    url: str
    node_name: str
    hosts: tuple[str, ...]
    addresses: tuple[str, ...]
    now: float

    @property
    def place(self) -> ApiPlace:
        """Where the API is served."""
        return ApiPlace(Path(self.folder), self.url, self.node_name, self.hosts, self.addresses)


class DueSpan(msgspec.Struct, frozen=True):
    """When nothing has to be done about the files: wall seconds."""

    start: float
    end: float


class Preparation:
    """The process, which runs beside what its starter does meanwhile. Raises AccessError."""

    def __init__(self, place: ApiPlace, now: float) -> None:
        self._place = place
        make_folder(place.folder)
        question = Question(str(place.folder), place.url, place.node_name, place.hosts, place.addresses, now)
        try:
            self._process = start_program(python_module(_CHILD), None, "/")
        except HostError as error:
            raise AccessError(f"certificates cannot be made: {error}") from error
        assert self._process.stdin is not None
        # the question fits into the pipe, so it does not matter whether the process reads already
        self._process.stdin.write(msgspec.json.encode(question))
        self._process.stdin.close()

    def span(self) -> DueSpan:
        """Wait for its end. Raises AccessError."""
        process = self._process
        process.stdin = None
        try:
            out, err = process.communicate(timeout=DEADLINE_S)
        except subprocess.TimeoutExpired:
            raise AccessError(f"certificates were not made within {DEADLINE_S:.0f} s") from None
        finally:
            self.stop()
        if process.returncode:
            lines = err.decode(errors="replace").strip().splitlines()
            raise AccessError(lines[-1] if lines else f"certificates cannot be made: exit code {process.returncode}")
        return msgspec.json.decode(out, type=DueSpan)

    def stop(self) -> None:
        """End the process, if it has not ended."""
        if self._process.poll() is None:
            kill_group(self._process.pid)
            self._process.wait()
        for pipe in (self._process.stdout, self._process.stderr):
            if pipe is not None:
                pipe.close()


class AccessUpkeep:
    """Knows until when the files are good. `files` has them made or renewed if they are not. Not for two threads at once."""

    def __init__(self, place: ApiPlace) -> None:
        self.place = place
        self._span = DueSpan(0.0, 0.0)
        self._seen = b""

    def files(self, now: float, begun: Preparation | None = None) -> AccessFiles:
        """The files, which are good at `now`. `begun`: a process that was started for it. Raises AccessError."""
        if begun is not None or not self._is_good(now):
            self._span = (begun or Preparation(self.place, now)).span()
            self._seen = self._digest()
        return files_in(self.place.folder)

    def _is_good(self, now: float) -> bool:
        return self._span.start <= now <= self._span.end and self._seen == self._digest()

    def _digest(self) -> bytes:
        """A checksum of all files."""
        found = files_in(self.place.folder)
        named = (
            *found.server,
            *found.agent_client,
            *found.own_client,
            found.admin_kubeconfig,
            found.kubelet_kubeconfig,
        )
        digest = hashlib.sha256()
        for path in (found.authority_file, self.place.folder / "ca.key", self.place.folder / TOKEN_KEY, *named):
            content = read_file(path)
            digest.update(b"-" if content is None else hashlib.sha256(content).digest())
        return digest.digest()
