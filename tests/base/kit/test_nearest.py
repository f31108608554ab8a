"""Which known name a mistyped one is nearest to."""

from __future__ import annotations

import pytest

from pykubelet.base.kit.nearest import nearest

FIELDS = ("name", "env", "envFrom", "image", "ports", "readinessProbe", "livenessProbe", "volumeMounts")


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("enviroment", "env"),
        ("environment", "env"),
        ("envform", "envFrom"),
        ("Image", "image"),
        ("port", "ports"),
        ("readynessProbe", "readinessProbe"),
        ("volumeMount", "volumeMounts"),
        ("nam", "name"),
        ("restartPolicy", None),
    ],
)
def test_the_nearest_name(name: str, near: str | None) -> None:
    assert nearest(name, FIELDS) == near
