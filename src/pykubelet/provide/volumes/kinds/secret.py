"""secret volumes: the keys of a Secret as files in memory.

Source: the Kubernetes documentation "Secrets".
"""

from __future__ import annotations

from collections.abc import Iterable

from pykubelet.base.api.core import Pod, Volume
from pykubelet.base.model.content import ContentKey
from pykubelet.base.model.needs import secret_key
from pykubelet.provide.volumes.kind import PlanInputs, UndecidedPlan
from pykubelet.provide.volumes.payloads.api_files import Reader
from pykubelet.provide.volumes.payloads.payload import PayloadPlan, plan_payload
from pykubelet.provide.volumes.payloads.payload_kind import payload_kind


def keys(pod: Pod, volume: Volume) -> Iterable[ContentKey]:
    """The Secret of the volume."""
    if volume.secret is not None and volume.secret.secretName:
        yield secret_key(pod, volume.secret.secretName)


def plan(inputs: PlanInputs) -> PayloadPlan | UndecidedPlan:
    """The keys of the Secret as files in memory. VolumesError for a missing object or key."""
    source = inputs.volume.secret
    assert source is not None
    reader = Reader(inputs.pod, inputs.content, source.defaultMode, source.defaultUser)
    files = reader.secret(source.secretName, source.items, source.optional)
    return plan_payload(inputs, files, reader.awaited)


KIND = payload_kind("secret", "kubernetes.io/secret", plan, keys)
