"""What names a logical unit of an iSCSI target, and the password for it. Pure.

Source: RFC 7143; iscsiadm(8).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from pykubelet.base.kit.values import RedactedValue, Value, field


class IscsiTarget(Value):
    """A logical unit of a target. `portals`: `host:port`, the first one first. `interface`: of iscsiadm.

    `copied`: the interface from which `interface` is made, with the name `initiator`; "" if it is used as it is.
    """

    portals: tuple[str, ...]
    iqn: str
    lun: int
    interface: str = "default"
    copied: str = ""
    initiator: str = ""


class Chap(RedactedValue):
    """The node's names and passwords. `secret`: values by the names of iscsiadm. For `discovery`, for a `session`, or both."""

    hidden: ClassVar = ("secret",)
    secret: Mapping[str, str] = field(default_factory=dict)
    discovery: bool = False
    session: bool = False
