"""What names a logical unit of an iSCSI target, and the password for it. Pure.

Source: RFC 7143; iscsiadm(8).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import ClassVar

from pykubelet.base.kit.values import RedactedValue, Value, field

AUTH_FIELDS = ("username", "password", "username_in", "password_in")
#: What a line of a record of iscsiadm can hold.
_VALUE = re.compile(r"[^\x00-\x1f\x7f]{1,255}")


def is_value(text: str) -> bool:
    """Whether a record can hold the value: it has no line feeds or other control characters, and at most 255 characters."""
    return _VALUE.fullmatch(text) is not None


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

    @property
    def for_discovery(self) -> dict[str, str]:
        """The values for the discovery."""
        return self._of("discovery.sendtargets.auth.")

    @property
    def for_session(self) -> dict[str, str]:
        """The values for the session."""
        return self._of("node.session.auth.")

    def _of(self, prefix: str) -> dict[str, str]:
        names = (prefix + name for name in AUTH_FIELDS)
        return {name: self.secret[name] for name in names if self.secret.get(name)}
