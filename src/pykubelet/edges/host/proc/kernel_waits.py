"""What a process or a thread waits for inside the kernel, in words. Reads /proc only, which never blocks. Source: proc(5)."""

from __future__ import annotations

from pykubelet.base.kit.values import Value

#: Who is waited for, by a part of the name of the kernel's function.
_WORDS = {
    "request_wait_answer": "the answer of a FUSE file system",
    "fuse": "the answer of a FUSE file system",
    "rpc_wait": "the answer of an NFS server",
    "nfs": "the answer of an NFS server",
    "smb": "the answer of an SMB server",
    "cifs": "the answer of an SMB server",
    "io_schedule": "a disk",
    "wait_on_page": "a disk",
    "folio_wait": "a disk",
    "d_alloc_parallel": "another process that looks up the same name",
    "rwsem": "a lock that another process holds",
}
_UNINTERRUPTIBLE = "D"


class ProcessState(Value):
    """A process. `state`: its letter in /proc, such as `S` (sleeps), `T` (stopped), `D` (waits and cannot be killed)."""

    pid: int
    name: str
    state: str


def process_state(pid: int, proc: str = "/proc") -> ProcessState | None:
    """The process; None if there is none."""
    text = _text(f"{proc}/{pid}/stat")
    name, _, rest = text.partition("(")[2].rpartition(")")
    fields = rest.split()
    return ProcessState(pid, name, fields[0]) if fields else None


def kernel_wait(thread: int) -> str:
    """What a thread of this process waits for in the kernel, in words; "" if it runs, or waits for something of this process."""
    folder = f"/proc/self/task/{thread}"
    function = _text(f"{folder}/wchan").strip()
    words = next((words for part, words in _WORDS.items() if part in function), "")
    if words:
        return f"{words} ({function})"
    fields = _text(f"{folder}/stat").rpartition(")")[2].split()
    if not fields or fields[0] != _UNINTERRUPTIBLE:
        return ""
    return f"the kernel ({function or 'function unknown'})"


def _text(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read(4096)
    except OSError:
        return ""
