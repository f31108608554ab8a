"""Expands mounted CSI volumes on the node: a call to the driver, which grows the file system, or only takes notice of a new size.

Source: Container Storage Interface 1.9, NodeExpandVolume; the classes of errors are those of the reference kubelet.
"""

from __future__ import annotations

from pykubelet.edges.csi.node import Capability, CsiNode
from pykubelet.net.grpc.status import Code, RpcError
from pykubelet.provide.volumes.csi.calls import expand_request, registered_driver
from pykubelet.provide.volumes.csi.data import CsiPlan, driver_missing
from pykubelet.provide.volumes.expansion import ExpandError, ExpandFault
from pykubelet.provide.volumes.kind import EXPANDING, CallContext

FAILED = "Expander.NodeExpand failed to expand the volume : "
INFEASIBLE = "Expander.NodeExpand failed to expand the volume "
UNCHECKED = "Expander.NodeExpand failed to check if node supports expansion : "
_FAULTS = {
    Code.INVALID_ARGUMENT: ExpandFault.INFEASIBLE,
    Code.OUT_OF_RANGE: ExpandFault.INFEASIBLE,
    Code.NOT_FOUND: ExpandFault.INFEASIBLE,
    Code.FAILED_PRECONDITION: ExpandFault.IN_USE,
}


async def expand(plan: CsiPlan, size: int, context: CallContext) -> int:
    """Have the driver grow the volume to at least `size` bytes. Returns its size. ExpandError; TransientError without a driver."""
    name = plan.data.driver
    driver = registered_driver(context.plugins, name, driver_missing(name, ""), EXPANDING)
    try:
        with CsiNode(driver.name, driver.endpoint, is_migrated=plan.access.is_migrated) as node:
            capabilities = await _capabilities(node)
            if Capability.EXPAND_VOLUME not in capabilities:
                text = f"NodeExpand is not supported by the CSI driver {name}"
                raise ExpandError(text, ExpandFault.NOT_SUPPORTED)
            if plan.expand_problem:
                raise ExpandError(plan.expand_problem)
            return await node.expand(expand_request(plan, size, capabilities)) or size
    except RpcError as error:
        fault = _FAULTS.get(error.code, ExpandFault.FINAL)
        raise ExpandError((INFEASIBLE if fault is ExpandFault.INFEASIBLE else FAILED) + str(error), fault) from error


async def _capabilities(node: CsiNode) -> frozenset[int]:
    try:
        return await node.capabilities()
    except RpcError as error:
        raise ExpandError(UNCHECKED + str(error)) from error
