"""Every rule of the validator about eviction, broken once: the document, and the messages without their prefix."""

from __future__ import annotations

from typing import Any

SIGNALS = (
    "memory.available, allocatableMemory.available, nodefs.available, nodefs.inodesFree, imagefs.available, "
    "imagefs.inodesFree, containerfs.available, containerfs.inodesFree, pid.available"
)

EVICTION: list[tuple[dict[str, Any], list[str]]] = [
    (
        {"evictionHard": {"cats.available": "1"}},
        [f"unsupported eviction signal cats.available (evictionHard): must be one of {SIGNALS}"],
    ),
    (
        {"evictionHard": {"memory.available": "120%"}},
        [
            'evictionHard[memory.available]: invalid value "120%": '
            "eviction percentage threshold memory.available must be <= 100%: 120%"
        ],
    ),
    (
        {"evictionHard": {"memory.available": "-5%"}},
        [
            'evictionHard[memory.available]: invalid value "-5%": '
            "eviction percentage threshold memory.available must be >= 0%: -5%"
        ],
    ),
    (
        {"evictionHard": {"memory.available": " 5%"}},
        ['evictionHard[memory.available]: invalid value " 5%": must be a quantity or a percentage'],
    ),
    (
        {"evictionHard": {"memory.available": "nan%"}},
        ['evictionHard[memory.available]: invalid value "nan%": must be a quantity or a percentage'],
    ),
    (
        {"evictionHard": {"memory.available": "-5"}},
        [
            'evictionHard[memory.available]: invalid value "-5": '
            "eviction threshold memory.available must be positive: -5"
        ],
    ),
    (
        {"evictionHard": {"memory.available": "0"}},
        ['evictionHard[memory.available]: invalid value "0": eviction threshold memory.available must be positive: 0'],
    ),
    (
        {"evictionHard": {"pid.available": "many"}},
        [
            'evictionHard[pid.available]: invalid value "many": '
            "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"
        ],
    ),
    (
        {"evictionMinimumReclaim": {"nodefs.available": "-5"}},
        [
            'evictionMinimumReclaim[nodefs.available]: invalid value "-5": '
            "negative eviction minimum reclaim specified for nodefs.available"
        ],
    ),
    (
        {"evictionMinimumReclaim": {"nodefs.available": "0%"}},
        [
            'evictionMinimumReclaim[nodefs.available]: invalid value "0%": '
            "eviction percentage minimum reclaim nodefs.available must be positive: 0%"
        ],
    ),
    (
        {"evictionMinimumReclaim": {"nodefs.available": "-1%"}},
        [
            'evictionMinimumReclaim[nodefs.available]: invalid value "-1%": '
            "eviction percentage minimum reclaim nodefs.available must be positive: -1%"
        ],
    ),
    (
        {"evictionSoft": {"memory.available": "1Gi"}},
        [
            "evictionSoft[memory.available]: "
            "grace period must be specified for the soft eviction threshold memory.available"
        ],
    ),
    (
        {"evictionSoft": {"memory.stall.some": "1Gi"}, "evictionSoftGracePeriod": {"memory.available": "1s"}},
        [f"unsupported eviction signal memory.stall.some (evictionSoft): must be one of {SIGNALS}"],
    ),
    (
        {"evictionSoftGracePeriod": {"memory.available": "soon"}},
        [
            'evictionSoftGracePeriod[memory.available]: invalid value "soon": invalid duration "soon": must be like 30s, 1h30m or 500ms'
        ],
    ),
    (
        {"evictionSoftGracePeriod": {"memory.available": "-1s"}},
        [
            "evictionSoftGracePeriod[memory.available]: "
            "invalid eviction grace period specified: -1s, must be a positive value"
        ],
    ),
]
