"""Every metric by its name, type and labels, against the list in `golden.txt`; what is missing stands in `gaps.txt`."""

from __future__ import annotations

import importlib
import pkgutil
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

import pytest
from serve.world import NOW, make_world

import pykubelet
from pykubelet.base.kit.exposition import render_metrics
from pykubelet.base.kit.metrics import PROBES, REGISTRY, Counter, Gauge, Histogram, MetricFamily, Registry
from pykubelet.base.kit.values import replace
from pykubelet.base.model.content import CertificateKey, CertificateRecord, Content
from pykubelet.base.model.ids import PodRef, PodUID
from pykubelet.base.model.mounts import MountedVolume, Mounts, PodMounts
from pykubelet.base.model.plugins import Plugins
from pykubelet.base.model.sizing import PendingResize
from pykubelet.base.model.usage import (
    ContainerUse,
    CpuUse,
    Details,
    DeviceIo,
    DiskUse,
    FileSystemUse,
    GroupDetail,
    GroupUse,
    InterfaceUse,
    MemoryUse,
    NetworkUse,
    NodeUse,
    PodUse,
    ProcessesUse,
    PsiData,
    PsiStats,
    Usage,
    VolumeUse,
)
from pykubelet.base.model.version import Release
from pykubelet.edges.host.proc.self_stats import read_self
from pykubelet.net.http.server import Request, Response
from pykubelet.serve.endpoints.health import HEALTH_CHECKS
from pykubelet.serve.metrics.cadvisor import MachineFacts, cadvisor_families
from pykubelet.serve.metrics.kubelet import MetricsInputs, kubelet_families, process_families
from pykubelet.serve.metrics.releases import of_release
from pykubelet.serve.metrics.resource import resource_families
from pykubelet.serve.metrics.routes import health_metrics, probe_metrics

HERE = Path(__file__).parent
PAGES = ("/metrics", "/metrics/cadvisor", "/metrics/resource", "/metrics/probes", "/metrics/slis")
#: Our own, by their prefix.
OWN = "pykubelet_"
_LABEL = re.compile(r'(\w+)="(?:[^"\\]|\\.)*"')
_SAMPLE = re.compile(r'(\w+)(?:\{((?:\w+="(?:[^"\\]|\\.)*",?)*)\})? (\S+)(?: (\d+))?')
Shape = tuple[str, frozenset[str]]


def lines_of(name: str) -> list[str]:
    return [line for line in (HERE / name).read_text().splitlines() if line and not line.startswith("#")]


def golden(release: Release) -> dict[str, dict[str, Shape]]:
    pages: dict[str, dict[str, Shape]] = {}
    for line in [*lines_of("golden.txt"), *(lines_of("golden-1.37.txt") if release is Release.V1_37 else ())]:
        if line.startswith("/"):
            page = pages.setdefault(line, {})
            continue
        name, kind, labels = line.split(" ")
        if kind == "gone":
            del page[name]
        else:
            page[name] = kind, frozenset(() if labels == "-" else labels.split(","))
    return pages


def gaps() -> dict[str, str]:
    """The reason by the page and the name, as `<page> <name>: <reason>` has it."""
    return dict(line.split(": ", 1) for line in lines_of("gaps.txt"))


def parse(text: str) -> dict[str, Shape]:
    """What a page reports: each line is a comment of its family or a sample; `le` and suffixes are a histogram's own."""
    kinds: dict[str, str] = {}
    labels: dict[str, frozenset[str]] = {}
    for line in text.splitlines():
        if line.startswith("# TYPE "):
            _, _, name, kind = line.split(" ")
            assert name not in kinds, f"{name} is reported twice"
            kinds[name] = kind
        elif not line.startswith("# HELP "):
            match = _SAMPLE.fullmatch(line)
            assert match is not None, line
            float(match[3])
            name = match[1] if match[1] in kinds else re.sub(r"_(bucket|sum|count)$", "", match[1])
            found = frozenset(_LABEL.findall(match[2] or "")) - {"le"}
            assert labels.setdefault(name, found) == found, f"samples of {name} differ in their labels"
    assert kinds.keys() == labels.keys()
    return {name: (kind, labels[name]) for name, kind in kinds.items()}


def declared(registry: Registry) -> dict[str, Shape]:
    """What is counted, also where nothing has been counted yet."""
    kinds = {Counter: "counter", Gauge: "gauge", Histogram: "histogram"}
    return {m.name: (kinds[type(m)], frozenset(m.labels)) for m in registry}


def everything_used() -> Usage:
    """A node and a pod of which all is known."""
    pressure = PsiStats(PsiData(1, 0.0, 0.0, 0.0), PsiData(1, 0.0, 0.0, 0.0))
    files = FileSystemUse(NOW, 100, 50, 10, 1000, 900, 7)
    network = NetworkUse(NOW, (InterfaceUse("eth0"),))

    def group(path: str) -> GroupUse:
        stalls = dict.fromkeys(("cpu", "memory", "io"), pressure)
        memory = MemoryUse(limit=1 << 20, swap=0, swap_limit=1 << 20)
        return GroupUse(NOW, CpuUse(quota_us=1000, period_us=100000), memory, 3, stalls, path=path)

    container = ContainerUse("app", "id", "busybox", "/p/app", NOW, group("/p/app"), files, files)
    ref = PodRef("default", "web", PodUID("uid-1"))
    pod = PodUse(ref, "/p", NOW, group("/p"), (container,), network, "sandbox", group("/p/sandbox"))
    claimed = VolumeUse("data", files, ("default", "data"), is_local=False, is_abnormal=False)
    node = NodeUse(group=group("/"), memory_capacity=1 << 30, booted_at=NOW, network=network, fs=files)
    details = Details(
        {"/p/app": GroupDetail((DeviceIo("254:0", 1, 1, 1, 1),), ProcessesUse(2, 9, 4, 1024), 50)},
        (DiskUse("vda", "254:0", 100, 5, 64, 2500, 40, 6, 8, 1500, 3, 4000, 9000),),
        "254:0",
    )
    return Usage(1.0, node, {ref.uid: replace(pod, volumes=(claimed,))}, True, details)


def reported() -> MetricsInputs:
    cells = make_world().inputs
    (uid, entry), *others = cells.roster.get().pods.items()
    resized = replace(entry, pending=PendingResize("Deferred", "no capacity", 2, NOW))
    scratch = MountedVolume("scratch", "emptyDir", "/scratch")
    return MetricsInputs(
        roster=replace(cells.roster.get(), pods={uid: resized, **dict(others)}),
        mounts=Mounts({uid: PodMounts({"scratch": scratch})}),
        usage=everything_used(),
        lifecycles=cells.lifecycles.get(),
        observed=cells.observed.get(),
        statuses=cells.statuses.get(),
        node=cells.node.get(),
        gates={"ContainerStopSignals": (False, "Alpha")},
        version="v1.36.0",
        cgroup_version=2,
        now=NOW,
        volume_plugins={"emptyDir": "kubernetes.io/empty-dir"},
        content=Content(True, certificates={CertificateKey(uid, "default", "web", "v", 0, "a/b"): CertificateRecord()}),
        plugins=Plugins(problems={"/r/gpu.sock": "GetInfo: hangs"}),
    )


def shapes(families: Iterable[MetricFamily]) -> dict[str, Shape]:
    return parse(render_metrics(families).decode())


def body(answer: object) -> str:
    assert isinstance(answer, Response)
    return answer.body.decode()


@pytest.fixture(scope="module")
def modules() -> None:
    """A metric is declared where it is counted."""
    for module in pkgutil.walk_packages(pykubelet.__path__, "pykubelet."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)


async def offered(page: str, release: Release) -> Mapping[str, Shape]:
    machine = MachineFacts(2, 1, 1, 1 << 30, 0, "boot", "machine", "system", "6.1", "Linux")
    match page:
        case "/metrics":
            families = [*kubelet_families(reported()), *process_families(read_self())]
            counted = declared(REGISTRY)
            kept = of_release([MetricFamily(name, "", "") for name in counted], release)
            return shapes(of_release(families, release)) | {family.name: counted[family.name] for family in kept}
        case "/metrics/cadvisor":
            return shapes(cadvisor_families(everything_used(), machine))
        case "/metrics/resource":
            return shapes(resource_families(everything_used()))
        case "/metrics/probes":
            return parse(body(await probe_metrics(Request("GET", page)))) | declared(PROBES)
        case _:
            HEALTH_CHECKS.inc("ping", "success", "healthz")
            return parse(body(await health_metrics({"ping": lambda: ""})(Request("GET", page))))


@pytest.mark.usefixtures("modules")
@pytest.mark.parametrize("release", [Release.V1_36, Release.V1_37])
@pytest.mark.parametrize("page", PAGES)
async def test_metrics_have_the_names_types_and_labels_that_monitors_know(page: str, release: Release) -> None:
    expected, missing = golden(release)[page], {key.split(" ")[1] for key in gaps() if key.startswith(f"{page} ")}
    found = {name: shape for name, shape in (await offered(page, release)).items() if not name.startswith(OWN)}
    assert found.keys() - expected.keys() == set(), "not in golden.txt"
    assert expected.keys() - found.keys() - missing == set(), "neither here nor in gaps.txt"
    assert {name: shape for name, shape in found.items() if shape != expected[name]} == {}
    assert missing & found.keys() == set(), "no longer a gap"
    assert missing - expected.keys() == set(), "gaps.txt names what golden.txt does not"


def test_every_gap_has_its_reason() -> None:
    assert all(reason.strip() for reason in gaps().values())
