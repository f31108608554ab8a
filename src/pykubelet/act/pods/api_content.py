"""Reads `Content` for one pod: waits for answers about API objects, and collects its pull secrets.

Owns: which answers a step needs before it continues, and the Event about missing pull secrets, recorded once for the same
secrets. `act/runtime` decides what the answers mean for a container or sandbox.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import partial
from operator import is_

from pykubelet.act.images.keyring import PullSecret, SecretSource
from pykubelet.act.pods.waitbook import Unless, WaitBook
from pykubelet.act.runtime.render.api_objects import unanswered, waits_for_services
from pykubelet.base.api.core import Pod, Secret
from pykubelet.base.kit.cells import Cell
from pykubelet.base.kit.mailbox import Post
from pykubelet.base.kit.remember import remember_last
from pykubelet.base.model.content import Content, Found, ObjectKey, Present, wait_for_key
from pykubelet.base.model.fieldpath import every_container
from pykubelet.base.model.ids import PodRef
from pykubelet.base.model.kube_events import KubeEvent, warning
from pykubelet.base.model.needs import environment_keys, pull_secret_keys, runtime_class_key
from pykubelet.base.model.reasons import EVENT_FAILED_TO_RETRIEVE_IMAGE_PULL_SECRET
from pykubelet.base.model.waits import Owner, Wait

SERVICES = Wait("services", Owner.OBJECT_CACHE, 0.0, detail="they have not been listed yet")


@remember_last
def start_keys(pod: Pod) -> frozenset[ObjectKey]:
    """The API objects whose change may allow a sandbox or container to start after a failure."""
    keys = {key for container in every_container(pod) for key in environment_keys(pod, container)}
    runtime_class = runtime_class_key(pod)
    return frozenset(keys if runtime_class is None else keys | {runtime_class})


def _unanswered(key: ObjectKey, content: Content) -> Wait | None:
    return None if unanswered((key,), content) is None else wait_for_key(key, 0.0)


class PodContent:
    """The view of one pod on `Content`."""

    def __init__(self, cell: Cell[Content], ref: PodRef, recorder: Post[KubeEvent]) -> None:
        self._cell = cell
        self._ref = ref
        self._recorder = recorder
        self._missing: list[str] = []
        self._answers: tuple[Found, ...] = ()
        self._secrets: tuple[PullSecret, ...] = ()

    def get(self) -> Content:
        """The current snapshot of API objects."""
        return self._cell.get()

    async def wait_answered(self, keys: Collection[ObjectKey], waits: WaitBook, unless: Unless | None = None) -> None:
        """Wait until all keys have an answer in `Content` at once: an answer may be dropped again. An error is also an answer."""
        while unanswered(keys, self._cell.get()) is not None:
            for key in keys:
                await waits.until(self._cell, partial(_unanswered, key), unless)

    async def wait_services(self, pod: Pod, waits: WaitBook, unless: Unless) -> None:
        """Wait until the services that the pod's environment needs are known."""
        await waits.until(self._cell, lambda now: SERVICES if waits_for_services(pod, now) else None, unless)

    async def pull_secrets(self, pod: Pod, waits: WaitBook) -> tuple[PullSecret, ...]:
        """The pull secrets of the pod that can be read. The pull continues without the others."""
        keys = pull_secret_keys(pod)
        if not keys or not self._cell.get().available:
            return ()
        await self.wait_answered(keys, waits)
        content = self._cell.get()
        answers = tuple(content.objects[key] for key in keys)
        if all(map(is_, answers, self._answers)) and len(answers) == len(self._answers):
            return self._secrets
        secrets: list[PullSecret] = []
        missing: list[str] = []
        for key, found in zip(keys, answers, strict=True):
            if isinstance(found, Present) and isinstance(found.value, Secret):
                secret, metadata = found.value, found.value.metadata
                source = SecretSource(metadata.uid, metadata.namespace, metadata.name)
                secrets.append(PullSecret(source, secret.type, secret.data))
            else:
                missing.append(key.name)
        self._report_missing(missing)
        self._answers, self._secrets = answers, tuple(secrets)
        return self._secrets

    def _report_missing(self, missing: list[str]) -> None:
        if missing and missing != self._missing:
            text = (
                f"Unable to retrieve some image pull secrets ({', '.join(missing)}); "
                "attempting to pull the image may not succeed."
            )
            self._recorder.post(warning(EVENT_FAILED_TO_RETRIEVE_IMAGE_PULL_SECRET, text, self._ref))
        self._missing = missing
