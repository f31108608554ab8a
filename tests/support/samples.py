"""Runs the samples of Python in a recipe: `python -m support.samples PAGE`. In a process of its own, since a metric registers itself.

Each sample begins with a comment that names its file. Names are those of that file, if it exists, and of the samples before it on the
page; a file that does not exist is a new module. `CHECKS` then uses what the samples define.
"""

from __future__ import annotations

import asyncio
import importlib
import inspect
import os
import re
import sys
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from textwrap import dedent
from types import ModuleType, SimpleNamespace
from typing import Any

from act.pods.node import named, node
from act.pods.playbook import Playbook
from act.pods.scenes import box, exited, pod
from provide.volumes.samples import CONTEXT, NODE, make_pod
from support.virtual_time import VirtualLoop

from pykubelet.act.pods.backoff import CrashBackOffs
from pykubelet.act.runtime.render.dns import Resolver
from pykubelet.base.api.codec import from_object
from pykubelet.base.api.core import Pod, Volume
from pykubelet.base.kit.cells import make_cell
from pykubelet.base.kit.values import replace
from pykubelet.base.model.ids import PodUID
from pykubelet.base.model.lifecycle import Lifecycles
from pykubelet.base.model.observed import Observed
from pykubelet.base.model.paths import Paths
from pykubelet.base.model.roster import ManifestProblem, Roster
from pykubelet.base.model.statuses import Statuses
from pykubelet.edges.host.fs import mounts
from pykubelet.edges.host.fs.mounts import is_mount_point
from pykubelet.edges.probing.outcome import Outcome
from pykubelet.provide.placement.provider import Provider
from pykubelet.provide.volumes import plan as volume_plan
from pykubelet.provide.volumes.directories import VolumeDirs
from pykubelet.provide.volumes.kind import VolumeKind, VolumesError
from pykubelet.provide.volumes.model import Inputs
from pykubelet.serve.endpoints.known_pods import KnownPods

SRC = Path(__file__).parents[2] / "src/pykubelet"
_SAMPLE = re.compile(r"^( *)```python\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
_FILE = re.compile(r"# ((?:\w+/)+\w+\.py)\b")
Names = dict[str, Any]


def samples(text: str) -> Iterator[tuple[str, str]]:
    """The file and the code of each sample on a page. ValueError for one that names no file."""
    for sample in _SAMPLE.finditer(text):
        code = dedent(sample[2])
        file = _FILE.match(code)
        if file is None:
            raise ValueError(f"the sample names no file in its first line: {code.splitlines()[0]}")
        yield file[1], code


def run(page: Path) -> Names:
    """Run all samples of a page. Returns what they define."""
    defined: Names = {}
    for file, code in samples(page.read_text()):
        name = file.removesuffix(".py").replace("/", ".")
        if not name.startswith("pykubelet_"):  # the package of a program beside the agent
            name = f"pykubelet.{name}"
        module = ModuleType(name)
        if (SRC / file).exists():
            vars(module).update(vars(importlib.import_module(name)))
        vars(module).update(defined)
        sys.modules[name] = module  # where structs look up the types of their fields
        before = dict(vars(module))
        exec(compile(code, f"{page.name}: {file}", "exec", dont_inherit=True), vars(module))
        defined |= {key: value for key, value in vars(module).items() if before.get(key) is not value}
    return defined


def check_back_off(names: Names) -> None:
    """With the sample in its place, only ends with an error wait, and their series goes on."""
    CrashBackOffs._last_ended = names["_last_ended"]  # type: ignore[method-assign]
    play = Playbook(pod())
    play.sees()
    waits = []
    for attempt, code in enumerate((1, 0, 1, 0, 0, 1)):
        play.sync_ended("app")
        play.passes(1)
        *_, wake = play.sees(box(), exited(code=code, attempt=attempt, ended=play.wall))
        seconds = float(wake.split()[2]) if wake.startswith("wake") else 0
        waits.append(seconds)
        if seconds:
            play.passes(seconds)
            assert play.wakes() == ["sync: start app"]
    assert waits == [0, 0, 10, 0, 0, 20]


def check_field(names: Names) -> None:
    assert names["maxParallelLogQueries"] == 2
    assert names["__annotations__"]["maxParallelLogQueries"].__metadata__[0].high == 100


ROSTER = Roster(problems=(ManifestProblem("a.yaml", "", "it is bad"),))


def check_endpoint(names: Names) -> None:
    pods = KnownPods(
        make_cell("roster", ROSTER)[0],
        make_cell("lifecycles", Lifecycles())[0],
        make_cell("observed", Observed())[0],
        make_cell("statuses", Statuses())[0],
    )
    assert names["problems_answer"](pods).body == b"a.yaml: it is bad\n"


def check_metric(names: Names) -> None:
    assert names["QUERIES"].value("200") == 1

    class Inputs:
        roster = ROSTER

    (family,) = names["_manifest_problems"](Inputs)
    assert [sample.value for sample in family.samples] == [1]


def check_probe(names: Names) -> None:
    assert inspect.iscoroutinefunction(names["probe_udp"])
    assert inspect.signature(names["probe_udp"], eval_str=True).return_annotation is Outcome


def check_manager(names: Names) -> None:
    """It has the methods of a provider, with their arguments."""
    manager = names["WayManager"]()
    for name, method in inspect.getmembers(Provider, inspect.isfunction):
        if not name.startswith("_"):
            wanted = list(inspect.signature(method).parameters)[1:]
            assert list(inspect.signature(getattr(manager, name)).parameters) == wanted, name


def check_pod_field(names: Names) -> None:
    """The field is validated with its path, and comes before all other domains."""
    spec = SimpleNamespace(dnsFirstSearch="a_b")
    (error,) = names["validate_first_search"](spec, "spec")
    assert error.path == "spec.dnsFirstSearch"
    resolver = names["_with_first_search"](Resolver(searches=("b.c", "a.b")), SimpleNamespace(spec=spec))
    assert resolver.searches == ("a_b", "b.c", "a.b")


async def check_need(names: Names) -> None:
    """Two pods get a licence, the third waits for it under its name, and gets it when one of them has ended."""

    def asking(name: str) -> Pod:
        made = named(pod(terminationGracePeriodSeconds=0), name)
        return replace(made, metadata=replace(made.metadata, annotations={names["ANNOTATION"]: "yes"}))

    assert names["NEEDS"][-1] is names["LicenceNeed"]
    with tempfile.TemporaryDirectory() as folder:
        async with node(Path(folder), needs=names["NEEDS"]) as on:
            on.want(asking("a"), asking("b"), named(pod(), "other"))
            for name in ("a", "b", "other"):
                await on.wait_running(name)
            on.want(asking("c"))
            known = await on.wait_known("c", lambda known: any(wait.what == "licence" for wait in known.waits))
            assert [wait.detail for wait in known.waits if wait.what == "licence"] == ["all 2 are in use"]
            on.unwant("a")
            await on.wait_gone("a")
            await on.wait_running("c")
            (container,) = on.running("c")
            assert [env.value for env in container.config.envs if env.key == "LICENCE"] == [b"granted"]
            (container,) = on.running("other")
            assert all(env.key != "LICENCE" for env in container.config.envs)


def check_volume(names: Names) -> None:
    """The kind plans a volume, mounts it, and takes it away with its data."""
    kind: VolumeKind[Any] = names["KIND"]
    with tempfile.TemporaryDirectory() as folder:
        paths, uid = Paths(f"{folder}/root", f"{folder}/logs"), PodUID("u1")
        for limit in ("1Mi", None):
            source = {"sizeLimit": limit} if limit else {}
            volume = from_object(Volume, {"name": "data", "emptyDir": source})
            inputs = volume_plan._plan_inputs(kind, make_pod(volume), volume, Inputs(node=NODE), paths)
            assert kind.plan is not None and kind.set_up is not None
            try:
                made = kind.plan(inputs)
            except VolumesError as error:
                assert limit is None and "sizeLimit" in str(error)
                continue
            assert limit is not None
            if os.geteuid() != 0:
                continue
            dirs = VolumeDirs.of(paths, uid, kind.directory, "data")
            try:
                for _ in range(2):
                    kind.set_up(made, CONTEXT)
                assert is_mount_point(dirs.path)
                assert mounts.read_fs_usage(dirs.path).capacity_bytes == 1 << 20
            finally:
                kind.tear_down(dirs)
            assert not os.path.lexists(dirs.path)


#: By the page. A page without an entry has samples whose names alone are checked.
CHECKS: dict[str, Callable[[Names], Awaitable[None] | None]] = {
    "back-off-policy": check_back_off,
    "configuration-field": check_field,
    "endpoint": check_endpoint,
    "metric": check_metric,
    "pod-need": check_need,
    "pod-spec-field": check_pod_field,
    "probe-kind": check_probe,
    "resource-manager": check_manager,
    "volume-kind": check_volume,
}


async def main(page: Path) -> None:
    names = run(page)
    if (check := CHECKS.get(page.stem)) is not None:
        waits = check(names)
        if waits is not None:
            await waits


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(main(Path(sys.argv[1])))
