"""Identifiers of pods and other objects, as distinct types."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NewType, Protocol, TypeVar

from pykubelet.base.kit.values import Value

PodUID = NewType("PodUID", str)
ContainerID = NewType("ContainerID", str)
SandboxID = NewType("SandboxID", str)
V = TypeVar("V")
V_co = TypeVar("V_co", covariant=True)

_POD_UID = re.compile(r"[0-9A-Za-z][-0-9A-Za-z]{0,63}")
_OBJECT_NAME = re.compile(r"[A-Za-z0-9][-._:A-Za-z0-9]*")


def is_pod_uid(text: str) -> bool:
    """Whether `text` can be a pod's UID here: it names directories and cgroups, so it must be a plain file name."""
    return _POD_UID.fullmatch(text) is not None


def is_object_name(name: str) -> bool:
    """Return whether an API object can have this name.

    The API server does not validate every name that a pod may refer to. A name with a slash or dots would change the path of
    a request, and the agent would read that path with the rights of the node.
    """
    return _OBJECT_NAME.fullmatch(name) is not None


class PodRef(Value, order=True):
    """Identifies a pod by namespace, name and UID."""

    namespace: str
    name: str
    uid: PodUID

    @property
    def full_name(self) -> str:
        """`name_namespace`, the key under which only one static pod may run."""
        return f"{self.name}_{self.namespace}"

    def __str__(self) -> str:
        """`name_namespace(uid)`, as the reference prints pods in messages."""
        return f"{self.name}_{self.namespace}({self.uid})"


class ByPod(Protocol[V_co]):
    """A snapshot that has something of each pod."""

    @property
    def pods(self) -> Mapping[PodUID, V_co]:
        """By pod."""


def pods_of(snapshot: ByPod[V]) -> Mapping[PodUID, V]:
    """What a snapshot has of each pod: the mapping of which one who waits for a single pod waits for an entry (`Cell.entry`)."""
    return snapshot.pods
