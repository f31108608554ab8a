"""The values of the publisher: what it knows of each of the API server's pods, its requests, and the answers to them. Pure.

Times are monotonic seconds unless a name has `wall` in it.
"""

from __future__ import annotations

from collections.abc import Mapping

from pykubelet.base.api.core import Pod, PodStatus
from pykubelet.base.kit.backoff import Failures
from pykubelet.base.kit.values import Value, field
from pykubelet.base.model.ids import PodUID
from pykubelet.base.model.lifecycle import PodLifecycle
from pykubelet.base.model.node import ApiState
from pykubelet.base.model.roster import Roster
from pykubelet.base.model.statuses import Statuses
from pykubelet.base.model.waits import Wait
from pykubelet.edges.kubeapi.errors import ApiError
from pykubelet.report.status.merge import Urgency
from pykubelet.report.status.patch_inputs import PatchInput, PatchSnapshot

#: How long a patch waits for what follows it soon: other containers that start, or the end of a resize.
PARTIAL_S = 0.1
#: Patches of one pod with a change that a client may wait for: so many are sent at once, and then one in each `CHANGE_EACH_S`.
CHANGES_AT_ONCE = 5
CHANGE_EACH_S = 0.1
#: The urgencies of patches that another one will probably replace before they are sent.
DEFERRED = frozenset({Urgency.DEFERRABLE, Urgency.SUPERSEDED})


class PublishPeriods(Value):
    """Seconds. `defer_s`: the least delay of a deferrable patch. `retry_s`: the first back-off after a failure, doubling to
    `retry_max_s`; for all requests together, while the server cannot be reached, to `away_max_s`."""

    defer_s: float = 1.0
    retry_s: float = 0.2
    retry_max_s: float = 20.0
    away_max_s: float = 5.0


class StatusChange(Value):
    """A patch to `wanted`. `changes_condition`: a condition becomes True, or is no longer True."""

    wanted: PodStatus
    urgency: Urgency
    changes_condition: bool


class Settled(Value):
    """What was sent last: the status, whether the pod had ended, and the status in the answer."""

    status: PodStatus
    has_ended: bool
    answer: PodStatus


class RequestFailure(Value):
    """The failures of a pod's requests since the last success. `is_unanswered`: the last one got no answer."""

    row: Failures
    wait: Wait
    is_unanswered: bool


class StatusRecord(Value):
    """One pod of the API server.

    `known`: its newest copy. `here`: its UID on this node. `inputs`: those that `patch` was made from. `deletes`: its last
    deletion must be sent. `since`: when there first was something to send. `crowd`: the highest number of deferrable patches
    since then. `deferrable_at`: when a deferrable patch was last sent. `changes_until`: the end of the time that the changes sent so far
    use up, `CHANGE_EACH_S` for each. `deleted_wall`: when it was deleted for good.
    """

    uid: PodUID
    known: Pod
    here: PodUID
    inputs: PatchInput
    patch: StatusChange | None = None
    deletes: bool = False
    since: float = 0.0
    crowd: int = 0
    deferrable_at: float = float("-inf")
    changes_until: float = float("-inf")
    settled: Settled | None = None
    failure: RequestFailure | None = None
    is_under_way: bool = False
    deleted_wall: float | None = None

    @property
    def urgency(self) -> Urgency | None:
        """The urgency of the request to send; None: there is nothing to send."""
        return self.patch.urgency if self.patch is not None else Urgency.END if self.deletes else None

    @property
    def free_at(self) -> float:
        """When a request may be sent again after a failure."""
        return self.failure.row.until if self.failure is not None else 0.0

    @property
    def due_at(self) -> float:
        """When a request that is not deferred is due."""
        match self.urgency:
            case Urgency.CHANGED:
                at = max(self.since, self.changes_until - (CHANGES_AT_ONCE - 1) * CHANGE_EACH_S)
            case Urgency.PARTIAL:
                at = self.since + PARTIAL_S
            case _:
                at = self.since
        return max(at, self.free_at)


class Agenda(Value):
    """The pods with something to send, so that a decision looks only at those that are due.

    `later` and `due`: those without a request under way, sorted. A pod moves from `later`, which is by time, to `due`, which is
    by urgency and age, when its time has come. `deferred`: those with a deferred patch (an ordered set). The delay of each
    depends on their number, so all are looked at together, and next at `deferred_at`.
    """

    later: tuple[tuple[float, PodUID], ...] = ()
    due: tuple[tuple[Urgency, float, PodUID], ...] = ()
    deferred: Mapping[PodUID, None] = field(default_factory=dict)
    deferred_at: float = 0.0


class PublishState(Value):
    """The state of the publisher. `under_way`: the number of requests. `away`: the failures since the server cannot be reached.

    `wake_at`: when the next decision is due if nothing happens before; None: no moment is.
    """

    api: ApiState
    snapshot: PatchSnapshot = PatchSnapshot()
    records: Mapping[PodUID, StatusRecord] = field(default_factory=dict)
    agenda: Agenda = Agenda()
    under_way: int = 0
    away: Failures = Failures()
    wake_at: float | None = None


# Requests


class SendPatch(Value):
    """Patch the pod's status from that of `known` to `wanted`. `inputs`: those that it was made from. `since`: as in `StatusRecord`."""

    uid: PodUID
    known: Pod
    wanted: PodStatus
    urgency: Urgency
    inputs: PatchInput
    since: float


class SendDeletion(Value):
    """Delete the pod for good."""

    uid: PodUID
    known: Pod


Request = SendPatch | SendDeletion


# Events, in past tense


class SnapshotsChanged(Value):
    """The newest snapshots of the other components, which may have changed."""

    pods: Mapping[PodUID, Pod]
    roster: Roster
    statuses: Statuses
    lifecycles: Mapping[PodUID, PodLifecycle]
    api: ApiState


class Patched(Value):
    """A patch was answered. `there`: the pod as the API server has it now; None: nothing had to be sent."""

    request: SendPatch
    there: Pod | None


class Deleted(Value):
    """A pod was deleted for good."""

    request: SendDeletion
    wall: float


class RequestFailed(Value):
    """A request has failed. `fraction`: a random number in [0, 1) for the back-off."""

    request: Request
    error: ApiError
    wall: float
    fraction: float


Answer = Patched | Deleted | RequestFailed
Event = SnapshotsChanged | Answer
