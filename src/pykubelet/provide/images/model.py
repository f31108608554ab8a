"""The requests, answers and snapshots of image pulls. Pure values.

Owns: the request and the answers of `ImagePuller.ensure`, the settings of this package, and the waits for running pulls. Times
named `at` or `since` are wall seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import StrEnum

from pykubelet.base.api.core import Pod
from pykubelet.base.kit.values import Value, field
from pykubelet.base.model.ids import PodRef, PodUID
from pykubelet.base.model.kube_events import KubeEvent
from pykubelet.base.model.waits import Owner, Wait
from pykubelet.config.settings import Settings
from pykubelet.edges.cri.cri_pb2 import PodSandboxConfig
from pykubelet.provide.images.keyring import PodPullSecrets


class PullPolicy(StrEnum):
    """imagePullPolicy of a container."""

    ALWAYS = "Always"
    IF_NOT_PRESENT = "IfNotPresent"
    NEVER = "Never"


class VerificationPolicy(StrEnum):
    """imagePullCredentialsVerificationPolicy: for which present images a pod must prove its access."""

    NEVER_VERIFY = "NeverVerify"
    PRELOADED = "NeverVerifyPreloadedImages"
    ALLOWLISTED = "NeverVerifyAllowlistedImages"
    ALWAYS_VERIFY = "AlwaysVerify"


class PullAccount(Value):
    """The pod's service account, for plugins that take its token."""

    namespace: str
    name: str


class ImageRequest(Value):
    """A request for the image of one container of one pod.

    `image`: as in the pod. `policy`: imagePullPolicy (empty counts as IfNotPresent). `field_path`: for the Events.
    `sandbox_config`: what the runtime gets about the pod with the pull. `annotations`: the pod's. `full_pod`: what extensions are asked
    about; None: they are not asked.
    """

    pod: PodRef
    container: str
    field_path: str
    image: str
    policy: str
    annotations: Mapping[str, str] = field(default_factory=dict)
    secrets: PodPullSecrets = PodPullSecrets()
    account: PullAccount | None = None
    sandbox_config: PodSandboxConfig | None = None
    runtime_handler: str = ""
    full_pod: Pod | None = None


class ImageReady(Value):
    """The image is present and the pod may use it.

    `image_ref` goes into CRI `ImageSpec.image`.
    `uid` and `username`: the image's user, for runAsNonRoot. At most one is set; if none is set, the user is root.
    `present`: the Event of an image that was not pulled. The caller records it when it uses the image.
    """

    image_ref: str
    image_id: str
    uid: int | None = None
    username: str = ""
    present: KubeEvent | None = None


class ImageError(Value):
    """The container cannot start: a waiting reason and its message.

    `retry_at`: when to call `ensure` again (monotonic seconds). After a failed pull that is soon: the next call returns
    ImagePullBackOff with the time of the next attempt. None: a retry cannot help unless the image name changes.
    `extension`: the one that delays the pull, which has not failed; empty: there is none.
    """

    reason: str
    message: str
    retry_at: float | None
    extension: str = ""


class PullStage(StrEnum):
    """Whether a pull waits in the queue or the runtime is pulling."""

    QUEUED = "queued"
    PULLING = "pulling"


class WaitingPod(Value):
    """A container that waits for an image; `since`: wall seconds."""

    pod: PodRef
    container: str
    since: float


class ActivePull(Value):
    """One pull and the containers that wait for it. `position`: 0 while pulling, else its place in the queue, from 1.

    `since`: when it was requested. `started_at`: when it was admitted to the runtime; None while queued.
    """

    image: str
    stage: PullStage
    position: int
    since: float
    started_at: float | None
    pods: tuple[WaitingPod, ...]


def pull_waits(pulls: Iterable[ActivePull]) -> dict[PodUID, tuple[Wait, ...]]:
    """The waits of containers for images, by pod, with the place in the queue."""
    waits: dict[PodUID, tuple[Wait, ...]] = {}
    what, step = "image pull", "start the container"
    for pull in pulls:
        detail = f"{pull.stage} {pull.image}" + (f", number {pull.position} in the queue" if pull.position else "")
        for waiting in pull.pods:
            wait = Wait(what, Owner.IMAGE_MANAGER, waiting.since, waiting.container, "Pulling", detail, step)
            waits[waiting.pod.uid] = (*waits.get(waiting.pod.uid, ()), wait)
    return waits


# Extensions


class PullFacts(Value):
    """A pull that is about to be requested.

    `attempt`: from 1, counts the pulls of this image for this container. `is_present`: the image is there, and is pulled again.
    `waiting_since`: when the container began to wait for the image, in wall seconds.
    """

    request: ImageRequest
    pod: Pod
    attempt: int
    is_present: bool
    waiting_since: float


class PullPermit(Value):
    """The pull may be requested. Of the pulls that wait for a slot, those of the highest `priority` come first."""

    priority: int = 0


class PullDelay(Value):
    """The pull is not requested before `again_s` seconds have passed; then `extension` is asked again."""

    extension: str
    message: str
    again_s: float


class PullRefusal(Value):
    """The image must not be pulled for this container."""

    extension: str
    message: str


PullVerdict = PullPermit | PullDelay | PullRefusal
#: Asks the extensions about a pull; None: it is requested, without a priority.
AskForPull = Callable[[PullFacts], PullVerdict | None]


# Garbage collection

NEVER = float("-inf")


class StoredImage(Value):
    """One image of the runtime; `names` are its tags and digests, complete."""

    id: str
    names: tuple[str, ...]
    size_bytes: int
    pinned: bool


class Sighting(Value):
    """When an image was first seen, and when it was last seen in use (-inf: never). Monotonic seconds."""

    first_seen: float
    last_used: float = NEVER


class RemovalCandidate(Value):
    """An image that may be removed, and its sighting."""

    image: StoredImage
    sighting: Sighting


class RankingFacts(Value):
    """What extensions learn of the candidates beside themselves. `now`, `wall`: monotonic and wall seconds of the collection.

    `over_age`: the IDs of those that are removed because of their age.
    """

    now: float
    wall: float
    over_age: frozenset[str] = frozenset()


#: Asks the extensions for another order of removal; None: they leave the order as it is.
AskForRemovalOrder = Callable[[Sequence[RemovalCandidate], RankingFacts], Sequence[RemovalCandidate] | None]


class ImageSettings(Value):
    """The values of the configuration that this package needs.

    `qps` 0: no limit. `max_parallel` None: no limit; `serialize` overrides it. Durations in seconds, `max_age_s` 0: off;
    thresholds in percent. `allowlist`: preloadedImagesVerificationAllowlist. `ensure_secret_pulled`: the gate
    KubeletEnsureSecretPulledImages. `protected`: image names never collected, beside pinned ones and the sandbox image.
    `records_dir`: where pull records are kept. `ask_for_order`: None: no extension ranks images for removal. `ask_for_pull`: None: no
    extension takes part in pulls.
    """

    records_dir: str
    serialize: bool = True
    max_parallel: int | None = None
    qps: float = 5.0
    burst: int = 10
    back_off_initial_s: float = 10.0
    back_off_max_s: float = 300.0
    verification: VerificationPolicy = VerificationPolicy.PRELOADED
    allowlist: frozenset[str] = frozenset()
    ensure_secret_pulled: bool = True
    min_age_s: float = 120.0
    max_age_s: float = 0.0
    high_percent: int = 85
    low_percent: int = 80
    gc_period_s: float = 300.0
    protected: frozenset[str] = frozenset()
    ask_for_order: AskForRemovalOrder | None = None
    ask_for_pull: AskForPull | None = None


def image_settings(
    settings: Settings, ask_for_order: AskForRemovalOrder | None = None, ask_for_pull: AskForPull | None = None
) -> ImageSettings:
    """The settings of this package from the configuration."""
    config = settings.config
    return ImageSettings(
        records_dir=f"{settings.flags.root_dir}/image_manager",
        serialize=config.serializeImagePulls,
        max_parallel=config.maxParallelImagePulls,
        qps=float(config.registryPullQPS),
        burst=config.registryBurst,
        verification=_verification(config.imagePullCredentialsVerificationPolicy),
        allowlist=frozenset(config.preloadedImagesVerificationAllowlist),
        ensure_secret_pulled=settings.enabled("KubeletEnsureSecretPulledImages"),
        min_age_s=settings.config.imageMinimumGCAge.s,
        max_age_s=settings.config.imageMaximumGCAge.s,
        high_percent=config.imageGCHighThresholdPercent,
        low_percent=config.imageGCLowThresholdPercent,
        ask_for_order=ask_for_order,
        ask_for_pull=ask_for_pull,
    )


def _verification(policy: str) -> VerificationPolicy:
    """The policy as a value. It is empty while the gate KubeletEnsureSecretPulledImages is off; then nothing is verified."""
    return VerificationPolicy(policy) if policy else VerificationPolicy.NEVER_VERIFY
