"""The range of host user ids for the pods' user namespaces.

Owns: the call of `getsubids` and the rules for its output. Not here: which pod gets which ids.
Source: KEP-127; the Kubernetes documentation "User Namespaces", set up of the node.
"""

from __future__ import annotations

import pwd

from pykubelet.base.kit.values import Value
from pykubelet.edges.host.fs.errors import HostError
from pykubelet.edges.host.services.process import ProgramResult, run_program

KUBELET_USER = "kubelet"
#: The user ids of Linux; the last 32-bit number is none: it stands for "no user".
_ALL_IDS = (1 << 32) - 1
_PROGRAM = "getsubids"


class IdRange(Value):
    """A range of `length` host ids, beginning with `first`."""

    first: int
    length: int

    def slots(self, ids_per_pod: int) -> int:
        """The number of pods that the range is enough for. What is beyond the last id of Linux does not count."""
        return max(0, (min(self.first + self.length, _ALL_IDS) - self.first) // ids_per_pod)


def default_range(ids_per_pod: int) -> IdRange:
    """All ids above the first block, which is reserved for the host."""
    return IdRange(ids_per_pod, _ALL_IDS - ids_per_pod)


def parse_subids(text: str) -> IdRange:
    """Parse the only line that `getsubids` may print, `0: kubelet 65536 7208960`. Raises ValueError with the reason."""
    lines = [line for line in text.splitlines() if line.strip()]
    if len(lines) != 1:
        raise ValueError(f"expected exactly one range of subordinate ids, got {len(lines)}")
    fields = lines[0].split()
    if len(fields) != 4 or not fields[2].isdigit() or not fields[3].isdigit():
        raise ValueError(f"cannot read {lines[0]!r}")
    return IdRange(int(fields[2]), int(fields[3]))


def check_range(users: IdRange, groups: IdRange, ids_per_pod: int) -> IdRange:
    """Return the range if pods can use it. Raises ValueError that names the violated rule."""
    if users != groups:
        raise ValueError(f"user and group ids differ: {users} and {groups}")
    if users.first < ids_per_pod:
        raise ValueError(f"the range starts at {users.first}, below the first {ids_per_pod} ids, which the host keeps")
    if users.first % ids_per_pod or users.length % ids_per_pod or users.length == 0:
        raise ValueError(f"start {users.first} and length {users.length} must be multiples of {ids_per_pod}")
    return users


async def read_subids(ids_per_pod: int = 65536, user: str = KUBELET_USER) -> IdRange:
    """The range of the user `kubelet`, or the default if there is no such user or no `getsubids`.

    Raises HostError if the range is one that pods cannot use.
    """
    if not _user_exists(user):
        return default_range(ids_per_pod)
    try:
        users = await run_program((_PROGRAM, user), timeout_s=10)
        groups = await run_program((_PROGRAM, "-g", user), timeout_s=10)
    except HostError as error:
        if not error.is_not_found:
            raise
        return default_range(ids_per_pod)
    try:
        return check_range(parse_subids(_output(users)), parse_subids(_output(groups)), ids_per_pod)
    except ValueError as error:
        raise HostError(_PROGRAM, user, "", str(error)) from error


def _output(finished: ProgramResult) -> str:
    if finished.code != 0:
        raise ValueError(f"exit code {finished.code}: {finished.err.decode('utf-8', 'replace').strip()}")
    return finished.out.decode("utf-8", "replace")


def _user_exists(name: str) -> bool:
    try:
        pwd.getpwnam(name)
    except KeyError:
        return False
    return True
