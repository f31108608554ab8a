"""The configuration as `/configz` and the log show it: what the reference leaves out of its JSON when it is zero is left out,
and credentials are masked. Pure."""

from __future__ import annotations

import re
from typing import Any

from pykubelet.config.kubelet import API_VERSION, KIND, KubeletConfiguration
from pykubelet.config.schema import Field, Object, Scalar, config_shape, to_plain

#: Shown although they may be zero and are no pointers.
_ALWAYS = frozenset({"enforceNodeAllocatable", "verbosity"})
#: An object that is left out while nothing in it is given.
_NOT_EMPTY = "userNamespaces"

MASK = "<masked>"
#: In the names of headers with credentials.
_CREDENTIAL = re.compile("auth|cookie|credential|key|password|secret|session|token", re.IGNORECASE)
_USER_INFORMATION = re.compile(r"^([^/?#]*//)[^/?#]*@")


def shown(config: KubeletConfiguration) -> dict[str, Any]:
    """The configuration as JSON values."""
    found = _shown(config_shape(), to_plain(config))
    if taints := found.get("registerWithTaints"):
        found["registerWithTaints"] = [
            {name: item for name, item in taint.items() if item or name != "value"} for taint in taints
        ]
    return found


def shown_safely(config: KubeletConfiguration, *, without_headers: bool = False) -> dict[str, Any]:
    """`shown`, with the document's kind, and masked: the values in `staticPodURLHeader` of headers with credentials, or
    of all headers, and the user information of `staticPodURL`."""
    found = {"kind": KIND, "apiVersion": API_VERSION, **shown(config)}
    if headers := found.get("staticPodURLHeader"):
        found["staticPodURLHeader"] = {
            name: [MASK] * len(values) if without_headers or _CREDENTIAL.search(name) else values
            for name, values in headers.items()
        }
    if url := found.get("staticPodURL"):
        found["staticPodURL"] = _USER_INFORMATION.sub(rf"\1{MASK}@", url)
    return found


def _shown(node: Object, value: dict[str, Any]) -> dict[str, Any]:
    found = {}
    for name, item in value.items():
        entry = node.fields[name]
        if isinstance(entry.node, Object):
            item = _shown(entry.node, item)
            if item or name != _NOT_EMPTY:
                found[name] = item
        elif item or name in _ALWAYS or _is_shown_when_zero(entry):
            found[name] = item
    return found


def _is_shown_when_zero(entry: Field) -> bool:
    return isinstance(entry.node, Scalar) and (entry.pointer or entry.node.kind in ("duration", "quantity"))
