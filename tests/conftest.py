"""What every suite may ask for: a private containerd with our own images, one for the whole run."""

from __future__ import annotations

import asyncio
import gc
import os
import shutil
import signal
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from support import jitter
from support.blocking_calls import DETECTOR
from support.close_errors import CloseErrors
from support.loops import pytest_asyncio_loop_factories as pytest_asyncio_loop_factories
from support.real_time import LARGER, SLEEPS
from testbed import containerd, host, images, node, places, runtimes
from testbed.private_runtime import Testbed

from pykubelet.base.kit.checks import CHECKS, VARIABLE

#: Files of few tests that take minutes. They are started first: the last to start bounds the suite.
LONG_FILES = (
    "longlife/test_month.py",
    "agent/test_csi_crashes.py",
    "agent/test_crash_points.py",
    "csi_local/test_crashes.py",
    "lifecycle/test_histories.py",
    "lifecycle/test_real_histories.py",
    "agent/test_quarantine.py",
    "agent/test_ending.py",
    "agent/test_eviction.py",
    "field/test_situations.py",
    "agent/test_hanging_storage.py",
)

#: Tests that measure the product: its state machines do not check their states there.
MEASURED = ("tests/hostile/", "tests/provide/volumes/test_many_volumes.py", "tests/tools/test_pod_path.py")

#: The markers of tests that need more than a containerd.
LARGER_SUITES = {"cluster", "ten", "vm"}

#: The modules of the tests are compiled once, and not by every worker of every run, also where `PYTHONDONTWRITEBYTECODE` is set.
sys.dont_write_bytecode = False

_close_errors = CloseErrors()


def pytest_configure() -> None:
    """No loop before the first asynchronous test: asyncio would make one that is never closed, which is a warning.

    Examples may take their time.
    """
    asyncio.set_event_loop(None)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # what the tests have made is removed, as after Ctrl-C
    from hypothesis import HealthCheck, settings  # not above, where it would be compiled by every worker of every run

    # A busy machine is no fault of what is tested. A failure prints the line that repeats it, elsewhere too.
    settings.register_profile(
        "unhurried", settings(), deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow]
    )
    settings.load_profile("unhurried")
    _close_errors.start()
    SLEEPS.start()
    DETECTOR.start()
    jitter.install()


def pytest_runtest_setup(item: pytest.Item) -> None:
    """The order of tasks is that of the test, if `support.jitter` changes it. Every step of a state machine is checked, also in agents
    that the test starts."""
    jitter.seed(item.nodeid)
    CHECKS.is_on = not item.nodeid.startswith(MEASURED)
    os.environ[VARIABLE] = str(int(CHECKS.is_on))


def pytest_collection_finish() -> None:
    """No collection of garbage looks at the modules and the tests again: they stay, and are the most of all objects."""
    gc.collect()
    gc.freeze()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run each test several times, if the variable is set."""
    if times := int(os.environ.get("PYKUBELET_REPEAT", "0")):
        metafunc.fixturenames.append("repeated")
        metafunc.parametrize("repeated", range(times), ids=lambda number: f"time{number}")


def pytest_unconfigure() -> None:
    _close_errors.stop()
    DETECTOR.stop()
    SLEEPS.stop()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> Iterator[None]:
    """Fail the test if a descriptor was closed twice, in this process or in an agent that ends with the test.

    Fail it also if the product has made a call on the event loop's thread that may block, and if a unit test has slept.
    """
    yield
    sleeps = SLEEPS.take()
    if sleeps and not any(item.get_closest_marker(name) for name in LARGER):
        pytest.fail(
            f"a unit test does not sleep in real time; use virtual time, or wait for an event:\n{sleeps[:8000]}",
            pytrace=False,
        )
    if calls := DETECTOR.take():
        pytest.fail(
            f"calls that may block the event loop belong into a thread (base.kit.flight):\n{calls[:8000]}",
            pytrace=False,
        )
    if reports := _close_errors.take():
        pytest.fail(
            f"a descriptor was closed twice; perhaps in an earlier test of this file:\n{reports[:8000]}", pytrace=False
        )


@pytest.hookimpl(trylast=True)
def pytest_itemcollected(item: pytest.Item) -> None:
    """A test that uses a real containerd belongs to integration, unless its folder belongs to a larger suite."""
    names = {marker.name for marker in item.iter_markers()}
    if {"testbed", "docker_testbed"} & {*getattr(item, "fixturenames", ())} and not names & LARGER_SUITES:
        item.add_marker(pytest.mark.integration)


def _kinds_of_machine() -> dict[str, tuple[bool, str]]:
    """Markers for kinds of machines: whether this is one, and the reason to skip where it is not."""
    v2 = Path("/sys/fs/cgroup/cgroup.controllers").exists()
    return {
        "cgroup_v1": (not v2, "needs cgroup v1; this machine has v2"),
        "cgroup_v2": (v2, "needs cgroup v2; this machine has v1"),
        "systemd": (Path("/run/systemd/system").is_dir(), "needs systemd, which does not run here"),
    }


def _order_files(items: list[pytest.Item]) -> None:
    """Long files first, then those that use containers, then the others; each kind as pytest-xdist orders it.

    Tests with containers mostly wait, all others need the processor: so it is busy to the end, and no file is left over alone.
    """
    tests = Counter(item.path for item in items)
    waiting = {item.path for item in items if item.get_closest_marker("integration") is not None}

    def place(item: pytest.Item) -> tuple[bool, bool, int]:
        return not str(item.path).endswith(LONG_FILES), item.path not in waiting, -tests[item.path]

    items.sort(key=place)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Skip tests for another kind of machine. Each has a twin, or stands in for one, on the other kind."""
    if hasattr(config, "workerinput"):
        _order_files(items)
    kinds = _kinds_of_machine()
    for item in items:
        for marker, (is_here, reason) in kinds.items():
            if not is_here and item.get_closest_marker(marker) is not None:
                item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(scope="session")
def testbed() -> Iterator[Testbed]:
    """A running private containerd with the images of `testbed.images.BUILDERS`.

    Its cgroup root `/<name>` exists for the pods of the tests. Tests that stop or kill it start it again.
    """
    with _running("tests", "", tuple(images.BUILDERS)) as running:
        yield running


@pytest.fixture(scope="session")
def docker_testbed() -> Iterator[Testbed]:
    """The same with a private Docker Engine behind `pykubelet cri-docker`, and one image."""
    with _running("docker", str(runtimes.docker_bin()), (images.BUSYBOX,)) as running:
        yield running


@contextmanager
def _running(name: str, bin_dir: str, built: tuple[str, ...]) -> Iterator[Testbed]:
    if os.geteuid() != 0 or shutil.which("containerd") is None:
        pytest.fail("integration tests need root and containerd (make test installs what is missing)")
    node.sweep_dead_runs()
    folder = places.run_folder(name)
    try:
        running = containerd.up(folder, built, bin_dir)
        host.make_cgroup(f"/{running.name}")
        yield running
    finally:
        found = containerd.load(folder)
        containerd.down(folder, [f"/{found.name}"] if found else [])
