"""Reserved resources: kubeReserved, systemReserved, reservedSystemCPUs, qosReserved. Pure.

Owns the checks that are fatal at start, and the parsed amounts. Source: doc page Reserve Compute Resources.
"""

from __future__ import annotations

from collections.abc import Mapping

from pykubelet.base.api.quantity import Amount, QuantityError, parse_text
from pykubelet.base.kit.cpuset import parse_cpuset
from pykubelet.base.kit.text import parse_decimal
from pykubelet.base.kit.values import Value
from pykubelet.config.errors import ConfigProblem
from pykubelet.config.kubelet import KubeletConfiguration

RESOURCES = ("cpu", "memory", "ephemeral-storage", "pid")
QOS_RESOURCES = ("memory",)


class Reserved(Value):
    """The reserved amounts. `kube`, `system`: by resource name. `cpus`: the reserved CPU ids, empty if none are named.

    `qos`: percent by resource.
    """

    kube: Mapping[str, Amount]
    system: Mapping[str, Amount]
    cpus: frozenset[int]
    qos: Mapping[str, int]


def read_reserved(config: KubeletConfiguration, qos_gate: bool) -> tuple[Reserved, tuple[ConfigProblem, ...]]:
    """The reservations and their problems. `qos_gate`: the feature gate QOSReserved.

    If CPUs are named, `system` has their number as `cpu` and `kube` has no `cpu`.
    """
    problems: list[ConfigProblem] = []
    kube = _amounts("kubeReserved", config.kubeReserved, problems)
    system = _amounts("systemReserved", config.systemReserved, problems)
    try:
        cpus = parse_cpuset(config.reservedSystemCPUs)
    except ValueError:
        cpus = frozenset()  # the validator reports it
    if cpus:
        kube.pop("cpu", None)
        system["cpu"] = parse_text(str(len(cpus)))
    qos = _qos(config.qosReserved, problems) if qos_gate else {}
    return Reserved(kube, system, cpus, qos), tuple(problems)


def _amounts(field: str, given: Mapping[str, str], problems: list[ConfigProblem]) -> dict[str, Amount]:
    amounts = {}
    for name, text in given.items():
        if name not in RESOURCES:
            allowed = f"must be one of {', '.join(RESOURCES)}"
            problems.append(ConfigProblem(field, f'cannot reserve "{name}" resource ({field}): {allowed}'))
            continue
        try:
            amount = parse_text(text)
        except QuantityError as error:
            what = f'failed to parse quantity "{text}" for "{name}" resource ({field}): {error}'
            problems.append(ConfigProblem(field, what))
            continue
        if amount.nano < 0:
            what = f'resource quantity for "{name}" cannot be negative: {text} ({field})'
            problems.append(ConfigProblem(field, what))
            continue
        amounts[name] = amount
    return amounts


def _qos(given: Mapping[str, str], problems: list[ConfigProblem]) -> dict[str, int]:
    percents = {}
    for name, text in given.items():
        percent = parse_decimal(text.removesuffix("%"), 100)
        if name not in QOS_RESOURCES:
            what = f'qosReserved: only memory can be reserved for QoS, not "{name}"'
        elif not text.endswith("%") or percent is None:
            what = f'qosReserved[{name}]: invalid value "{text}": must be a percentage from 0% to 100%'
        else:
            percents[name] = percent
            continue
        problems.append(ConfigProblem("qosReserved", what))
    return percents
