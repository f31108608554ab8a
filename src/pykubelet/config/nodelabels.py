"""Validates the labels of `--node-labels`. Pure. Source: the kubelet's command line reference and KEP-279."""

from __future__ import annotations

from collections.abc import Mapping

from pykubelet.base.api.labels import label_value_errors, qualified_name_errors

NAMESPACES = ("kubelet.kubernetes.io", "node.kubernetes.io")
KEYS = (
    "beta.kubernetes.io/arch",
    "beta.kubernetes.io/instance-type",
    "beta.kubernetes.io/os",
    "failure-domain.beta.kubernetes.io/region",
    "failure-domain.beta.kubernetes.io/zone",
    "kubernetes.io/arch",
    "kubernetes.io/hostname",
    "kubernetes.io/os",
    "node.kubernetes.io/instance-type",
    "topology.kubernetes.io/region",
    "topology.kubernetes.io/zone",
)


def node_label_problem(labels: Mapping[str, str]) -> str | None:
    """The problem of the labels, in the reference's words; None if there is none."""
    unknown = sorted(key for key in labels if _is_kubernetes(key) and not _is_allowed(key))
    if unknown:
        return (
            f"unknown 'kubernetes.io' or 'k8s.io' labels specified with --node-labels: [{' '.join(unknown)}]\n"
            f"--node-labels in the 'kubernetes.io' namespace must begin with an allowed prefix "
            f"({', '.join(NAMESPACES)}) or be in the specifically allowed set ({', '.join(KEYS)})"
        )
    wrong: dict[str, list[str]] = {}
    for key, value in labels.items():
        for text, errors in ((key, qualified_name_errors(key)), (value, label_value_errors(value))):
            if errors:
                wrong.setdefault(text, []).extend(errors)
    if wrong:
        return "invalid node labels: " + "; ".join(f"'{text}' - {', '.join(wrong[text])}" for text in wrong)
    return None


def _namespace(key: str) -> str:
    return key.split("/", 1)[0] if "/" in key else ""


def _below(namespace: str, domain: str) -> bool:
    return namespace == domain or namespace.endswith("." + domain)


def _is_kubernetes(key: str) -> bool:
    return any(_below(_namespace(key), domain) for domain in ("kubernetes.io", "k8s.io"))


def _is_allowed(key: str) -> bool:
    return key in KEYS or any(_below(_namespace(key), domain) for domain in NAMESPACES)
