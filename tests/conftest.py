"""What every suite may ask for: a private containerd with our own images, one for the whole run."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from testbed import containerd, host, images, node


def pytest_configure() -> None:
    """No loop before the first asynchronous test: asyncio would make one that nobody closes, which is a warning.

    Examples may take their time.
    """
    asyncio.set_event_loop(None)
    # a busy machine is no fault of what is tested
    settings.register_profile("unhurried", settings(), deadline=None, suppress_health_check=[HealthCheck.too_slow])
    settings.load_profile("unhurried")


@pytest.fixture(scope="session")
def testbed() -> Iterator[containerd.Testbed]:
    """A running private containerd with the images of `testbed.images.BUILDERS`.

    Its cgroup root `/<name>` exists for the pods of the tests. Tests that stop or kill it start it again.
    """
    if os.geteuid() != 0 or shutil.which("containerd") is None:
        pytest.fail("integration tests need root and containerd (make test installs what is missing)")
    node.sweep_dead_runs()
    folder = Path(f"/tmp/pyk-tests-{os.getpid()}")
    try:
        running = containerd.up(folder, tuple(images.BUILDERS))
        host.make_cgroup(f"/{running.name}")
        yield running
    finally:
        found = containerd.load(folder)
        containerd.down(folder, [f"/{found.name}"] if found else [])
