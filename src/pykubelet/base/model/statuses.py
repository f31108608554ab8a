"""Pod statuses as the API shows them. `Statuses` is written by report/status alone."""

from __future__ import annotations

from collections.abc import Mapping

from pykubelet.base.api.core import PodStatus
from pykubelet.base.kit.values import Value, field
from pykubelet.base.model.ids import PodUID


class Statuses(Value):
    """The statuses by pod. `remembered`: pods whose status is known only from before a restart of the agent."""

    pods: Mapping[PodUID, PodStatus] = field(default_factory=dict)
    remembered: frozenset[PodUID] = frozenset()
