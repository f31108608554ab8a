"""Downward API values and the plans of volumes."""

from __future__ import annotations

from typing import Any

import pytest
from provide.volumes.samples import NODE, claimed, empty_dir, make_pod

from pykubelet.base.api.codec import from_object
from pykubelet.base.api.core import (
    ConfigMapProjection,
    Container,
    DownwardAPIProjection,
    DownwardAPIVolumeFile,
    DownwardAPIVolumeSource,
    EnvVar,
    EnvVarSource,
    FileKeySelector,
    FlockerVolumeSource,
    GitRepoVolumeSource,
    HostPathVolumeSource,
    ObjectFieldSelector,
    ObjectMeta,
    Pod,
    PodSpec,
    ProjectedVolumeSource,
    ResourceFieldSelector,
    ResourceRequirements,
    Volume,
    VolumeMount,
    VolumeProjection,
)
from pykubelet.base.kit.values import replace
from pykubelet.base.model.fieldrefs import FieldRefError
from pykubelet.base.model.needs import used_volumes
from pykubelet.base.model.node import NodeView
from pykubelet.base.model.paths import Paths
from pykubelet.provide.volumes.fields import field_value, quote
from pykubelet.provide.volumes.kind import Plan, RefusedPlan, UndecidedPlan
from pykubelet.provide.volumes.kinds.empty_dir import EmptyDirPlan
from pykubelet.provide.volumes.kinds.host_path import HostPathPlan
from pykubelet.provide.volumes.model import Inputs
from pykubelet.provide.volumes.payloads.payload import PayloadFile, PayloadPlan
from pykubelet.provide.volumes.plan import plan_volume

PATHS = Paths("/k", "/logs")


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("metadata.name", "web"),
        ("metadata.namespace", "shop"),
        ("metadata.uid", "u1"),
        ("metadata.labels", 'app="w\\"eb"\nzone="a\\nb"'),
        ("metadata.labels['app']", 'w"eb'),
        ("metadata.annotations['no.such/one']", ""),
        ("metadata.annotations['example.com/x']", "grün"),
        ("metadata.annotations", 'example.com/x="grün"'),
    ],
)
def test_fields(path: str, value: str) -> None:
    pod = make_pod(labels={"zone": "a\nb", "app": 'w"eb'}, annotations={"example.com/x": "grün"})
    assert PayloadFile("x", field_value(pod, path), 0o644).content.decode() == value


@pytest.mark.parametrize("path", ["status.podIP", "spec.nodeName", "metadata.labels[app]", "metadata.finalizers"])
def test_fields_that_volumes_cannot_have(path: str) -> None:
    with pytest.raises(FieldRefError, match="unsupported fieldPath: "):
        field_value(make_pod(), path)


@pytest.mark.parametrize(
    ("text", "quoted"),
    [
        ("a\tb\\", '"a\\tb\\\\"'),
        ("\x00\x7f", '"\\x00\\x7f"'),
        ("\u00a0\u200b", '"\\u00a0\\u200b"'),
        ("\U000e0001 ok", '"\\U000e0001 ok"'),
        ("日本", '"日本"'),
    ],
)
def test_quoting_is_the_references(text: str, quoted: str) -> None:
    assert quote(text) == quoted


def resource_pod(limits: dict[str, str] | None = None, requests: dict[str, str] | None = None) -> Pod:
    resources = ResourceRequirements(limits=dict(limits or {}), requests=dict(requests or {}))
    container = Container(name="main", image="x", resources=resources)
    return Pod(metadata=ObjectMeta(uid="u1"), spec=PodSpec(containers=(container,)))


def plan(volume: Volume, pod: Pod | None = None, node: NodeView = NODE) -> Plan:
    return plan_volume(pod or make_pod(volume), volume, Inputs(node=node), PATHS)


def downward(path: str) -> tuple[DownwardAPIVolumeFile, ...]:
    return (DownwardAPIVolumeFile(path=path, fieldRef=ObjectFieldSelector(fieldPath="metadata.name"), mode=0o400),)


@pytest.mark.parametrize("path", ["../x", "a/../../x", "/etc/x", "..data", ".", "x" * 300])
def test_files_cannot_be_put_outside_or_over_the_writers_own(path: str) -> None:
    refused = plan(Volume(name="v", downwardAPI=DownwardAPIVolumeSource(items=downward(path))))
    assert isinstance(refused, RefusedPlan)
    assert refused.error.startswith("invalid path: ")


def test_projected_volumes_merge_sources_and_name_those_they_cannot_have() -> None:
    twice = ProjectedVolumeSource(
        defaultMode=0o600,
        sources=tuple(VolumeProjection(downwardAPI=DownwardAPIProjection(items=downward(p))) for p in ("a", "b/c")),
    )
    made = plan(Volume(name="v", projected=twice))
    assert isinstance(made, PayloadPlan)
    assert [(f.path, f.content, f.mode) for f in made.files] == [("a", b"web", 0o400), ("b/c", b"web", 0o400)]
    mapped = ProjectedVolumeSource(sources=(VolumeProjection(configMap=ConfigMapProjection(name="m")),))
    assert plan(Volume(name="v", projected=mapped)) == RefusedPlan("kube client is not configured")


def test_kinds_that_are_refused() -> None:
    assert plan(Volume(name="v", flocker=FlockerVolumeSource(datasetName="d"))) == RefusedPlan(
        'failed to get Plugin from volumeSpec for volume "v" err=no volume plugin matched: '
        'Kubernetes has no "flocker" volumes any more',
        step="",
    )
    repository = GitRepoVolumeSource(repository="https://example.com/x")
    assert plan(Volume(name="v", gitRepo=repository)) == RefusedPlan(
        "git-repo volume plugin has been disabled; let an init container clone the repository into an emptyDir volume",
        step="NewMounter initialization",
    )
    assert plan(Volume(name="v", hostPath=HostPathVolumeSource(path="/a/../b", type=""))) == RefusedPlan(
        "invalid HostPath `/a/../b`: must not contain '..'"
    )
    assert plan(empty_dir("v", medium="Disk")) == RefusedPlan('unknown storage medium "Disk"')


def size_of(limit: str | None, memory: str | None) -> int:
    volume = empty_dir("v", "Memory", limit)
    made = plan(volume, resource_pod({"memory": memory} if memory else {}))
    assert isinstance(made, EmptyDirPlan)
    return made.size


def test_the_size_in_memory_is_the_least_of_all_limits() -> None:
    assert size_of(None, None) == 1 << 30
    assert size_of("64Mi", None) == 64 << 20
    assert size_of("64Mi", "32Mi") == 32 << 20
    assert size_of("16Mi", "32Mi") == 16 << 20
    assert size_of("4Gi", None) == 1 << 30


def test_huge_pages() -> None:
    node = replace(NODE, page_sizes=(2 << 20,))
    pod = resource_pod({"hugepages-2Mi": "4Mi"})
    made = plan(empty_dir("v", "HugePages"), pod, node)
    assert isinstance(made, EmptyDirPlan)
    assert made.page_size == 2 << 20
    asked = "medium HugePages: hugePages storage requested, but there is no resource request for huge pages"
    assert plan(empty_dir("v", "HugePages"), resource_pod(), node) == RefusedPlan(asked)
    assert plan(empty_dir("v", "HugePages-2Mi"), pod) == RefusedPlan(
        "medium HugePages-2Mi: the node has no huge pages of 2097152 bytes"
    )
    two = resource_pod({"hugepages-2Mi": "4Mi", "hugepages-1Gi": "1Gi"})
    assert plan(empty_dir("v", "HugePages"), two, node) == RefusedPlan(
        "medium: HugePages can't be used if container requests multiple huge page sizes"
    )


def test_content_that_needs_the_node_waits_for_it() -> None:
    items = (
        DownwardAPIVolumeFile(
            path="cpu", resourceFieldRef=ResourceFieldSelector(containerName="main", resource="limits.cpu")
        ),
    )
    volume = Volume(name="v", downwardAPI=DownwardAPIVolumeSource(items=items))
    unknown = replace(NODE, allocatable={})
    assert isinstance(plan(volume, resource_pod(), unknown), UndecidedPlan)
    assert isinstance(plan(volume, resource_pod({"cpu": "1"}), unknown), PayloadPlan)


def test_a_volume_of_environment_files_is_used() -> None:
    source = EnvVarSource(fileKeyRef=FileKeySelector(volumeName="env", path="f", key="K"))
    main = Container(name="main", image="x", env=(EnvVar(name="K", valueFrom=source),))
    first = Container(name="init", image="x", volumeMounts=(VolumeMount(name="work", mountPath="/w"),))
    volumes = (empty_dir("env"), empty_dir("work"), empty_dir("idle"))
    pod = Pod(spec=PodSpec(containers=(main,), initContainers=(first,), volumes=volumes))
    assert [v.name for v in used_volumes(pod)] == ["env", "work"]


@pytest.mark.parametrize("text", ["/a\0b", "/a\ud800"])
@pytest.mark.parametrize("source", ["local", "hostPath", "nfs"])
def test_a_persistent_volume_with_text_that_no_file_can_have_is_refused(source: str, text: str) -> None:
    spec: dict[str, Any] = {source: {"path": text, **({"server": "s"} if source == "nfs" else {})}}
    volume, content = claimed(**spec)
    made = plan_volume(make_pod(volume), volume, Inputs(node=NODE, content=content), Paths("/k", "/logs"))
    assert isinstance(made, RefusedPlan)
    assert made.error.startswith(f"{source}.path: must not have ")


def test_a_relative_host_path_lies_below_the_root() -> None:
    volume = from_object(Volume, {"name": "v", "hostPath": {"path": "srv/data", "type": "Directory"}})
    made = plan_volume(make_pod(volume), volume, Inputs(node=NODE), Paths("/k", "/logs"))
    assert isinstance(made, HostPathPlan) and made.path == "/srv/data"
