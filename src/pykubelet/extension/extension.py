"""The base class of extensions, with a method for each point."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from pykubelet.extension.values import (
    Admission,
    Container,
    CpuMachine,
    CpuRequest,
    EvictionCandidate,
    Image,
    MemoryMachine,
    MemoryRequest,
    Node,
    Pod,
    PullAnswer,
    PullAttempt,
    RestartAnswer,
    RestartHistory,
)

#: The version of this interface (docs/extensions/VERSIONING.md).
VERSION = "1.0"


class Extension:
    """The base of extensions. `name`: in lower case, as it is shown to users. `api`: the version of this interface that it is written for.

    `version`: its own. `Settings`: a frozen dataclass of its settings; the file of `--extension NAME=FILE` is read into it,
    and a field that is not known or has the wrong type is refused. An instance is made once, when the agent starts.

    `annotation`: `admit`, `cgroup`, `pull` and `restart` are asked about pods with an annotation of this key alone; if it ends in a slash,
    about those with a key that begins with it. Others cost nothing then. Empty: about all pods.
    """

    name: ClassVar[str]
    api: ClassVar[str]
    version: ClassVar[str] = ""
    annotation: ClassVar[str] = ""
    Settings: ClassVar[type | None] = None

    def __init__(self, settings: Any = None) -> None:
        self.settings = settings

    def admit(self, pod: Pod, node: Node) -> Admission:
        """Whether a pod that the node would admit is admitted. Not asked for pods that run already.

        If several extensions are loaded, each can reject or hold the pod. The first answer that is not None counts.
        """
        raise NotImplementedError

    def rank_for_eviction(
        self, candidates: Sequence[EvictionCandidate], signal: str
    ) -> Sequence[EvictionCandidate] | None:
        """The order in which pods are evicted for a signal such as `memory.available`: the same candidates, the first victim first.

        `candidates` come in the built-in order. Critical pods are spared wherever they stand. One pod is evicted, and then the node is
        measured again. None: the built-in order.
        """
        raise NotImplementedError

    def place(self, request: CpuRequest, machine: CpuMachine) -> frozenset[int] | None:
        """The CPUs that a container gets to itself: `request.cpus` of `machine.free`. None: those that the policy `static` would choose.

        Asked only if `cpuManagerPolicy` has the extension's name. In everything else this policy is like `static`.
        """
        raise NotImplementedError

    def place_memory(self, request: MemoryRequest, machine: MemoryMachine) -> frozenset[int] | None:
        """The NUMA nodes of the memory that a container gets for itself: those of one of `request.choices`. None: of the first one.

        Asked only if `memoryManagerPolicy` has the extension's name, and where the Topology Manager leaves the nodes open. In everything
        else this policy is like `Static`.
        """
        raise NotImplementedError

    def rank_images_for_removal(self, images: Sequence[Image]) -> Sequence[Image] | None:
        """The order in which unused images are removed: the same images, the first to be removed first.

        `images` come in the built-in order: the longest unused first. Images that are in use, pinned, or younger than
        `imageMinimumGCAge` are never among them. For disk space, only as many are removed as needed. None: the built-in order.
        """
        raise NotImplementedError

    def cgroup(self, pod: Pod, container: Container | None, values: Mapping[str, str]) -> Mapping[str, str] | None:
        """Other values for the cgroup of a container, or for the pod's own (`container` None), than the agent would write.

        `values`: what it would write, under the names of the files of cgroup v2, also on cgroup v1. The answer may have more of them
        than change. Asked when a container is created, when its size changes, and once after each start of the agent. None: as they are.
        """
        raise NotImplementedError

    def pull(self, pull: PullAttempt, node: Node) -> PullAnswer:
        """Whether an image that must be pulled is pulled now, later or never, and before which other pulls.

        Asked once before each pull, after credentials are known and any back-off is over. None: now, with priority 0.
        """
        raise NotImplementedError

    def restart(self, container: Container, history: RestartHistory) -> RestartAnswer:
        """When a container starts again that has ended and would be restarted, or that it does not.

        Asked once for each exit, and after a start of the agent once more for the last one. Not asked for containers that the agent
        itself has killed to start them again. None: after the crash back-off.
        """
        raise NotImplementedError
