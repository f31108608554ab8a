"""The authenticated port of a node that stands alone: lists, logs, exec, attach, port-forward, with real containers."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from pathlib import Path

import grpc
import pytest
from prometheus_client.parser import text_string_to_metric_families
from support import metrics_server
from support.agent import Agent, Json, make_container, make_pod
from support.api import NodeApi
from support.pod_messages import read_pod

from pykubelet.edges.plugins import podresources_pb2 as pb
from pykubelet.edges.plugins import pods_pb2

pytestmark = pytest.mark.integration
POD = "web-node"
SETTINGS = {"authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}}}


@pytest.fixture(scope="module")
def api(agent: Agent) -> NodeApi:
    agent.put(
        make_pod(
            "web",
            make_container("talk", script="echo out; echo err >&2; trap 'exit 0' TERM; while :; do sleep 0.1; done"),
            make_container(
                "cat", stdin=True, command=["cat"], volumeMounts=[{"name": "scratch", "mountPath": "/scratch"}]
            ),
            volumes=[{"name": "scratch", "emptyDir": {}}],
        ),
        make_pod("done", make_container(script="echo bye; exit 3"), restartPolicy="Never"),
        make_pod("stuck", make_container(image="localhost/missing:1")),
    )
    with asyncio.Runner() as runner:
        runner.run(agent.wait_running("web"))
        runner.run(agent.wait_phase("done", "Failed"))
        runner.run(agent.wait_for("they have spoken", lambda: len(agent.log_lines("web", "talk")) == 2))
        runner.run(agent.wait_for("its last words are written", lambda: agent.output("done", "main") == "bye\n"))
    return NodeApi(agent.port).wait_listening()


def test_the_lists(api: NodeApi) -> None:
    code, pods = api.ask("/pods")
    assert code == 200
    assert {pod["metadata"]["name"] for pod in json.loads(pods)["items"]} >= {POD, "done-node"}
    code, running = api.ask("/runningpods/")
    found = {pod["metadata"]["name"]: pod for pod in json.loads(running)["items"]}
    assert {c["name"] for c in found[POD]["spec"]["containers"]} == {"talk", "cat"}
    code, config = api.ask("/configz")
    assert code == 200
    reported = json.loads(config)["kubeletconfig"]
    assert reported["kind"] == "KubeletConfiguration" and reported["syncFrequency"] == "1m0s"
    assert api.ask("/healthz") == (200, "ok")


@pytest.mark.parametrize(
    ("path", "method", "expected"),
    [
        ("/nothing", "GET", (404, "404: Page Not Found")),
        ("/pods", "POST", (405, "405: Method Not Allowed")),
        ("/run/default/web-node/talk", "GET", (405, "405: Method Not Allowed")),
        ("/exec/default/missing/talk?command=ls&output=1", "POST", (404, "pod does not exist")),
        ("/exec/default/web-node/missing?command=ls&output=1", "POST", (500, 'container not found ("missing")')),
        (
            "/exec/default/web-node/talk?command=ls",
            "POST",
            (400, "you must specify at least 1 of stdin, stdout, stderr"),
        ),
        ("/exec/default/web-node/talk?command=ls&output=1", "POST", (500, "Upgrade request required")),
        ("/containerLogs/default/missing/talk", "GET", (404, 'pod "missing" does not exist')),
        ("/containerLogs/default/web-node/x", "GET", (404, 'container "x" not found in pod "web-node"')),
        ("/containerLogs/default/web-node/talk?tailLines=x", "GET", (400, '{"message": "Unable to decode query."}')),
        ("/containerLogs/default/web-node/talk?tailLines=-1", "GET", (422, '{"message": "Invalid request."}')),
        (
            "/containerLogs/default/web-node/talk?previous=true",
            "GET",
            (400, 'previous terminated container "talk" in pod "web-node" not found'),
        ),
        ("/portForward/default/missing", "POST", (404, "pod does not exist")),
    ],
)
def test_what_cannot_be_answered(api: NodeApi, path: str, method: str, expected: tuple[int, str]) -> None:
    assert api.ask(path, method) == expected


async def test_why_there_is_no_log(agent: Agent, api: NodeApi) -> None:
    await agent.wait_pod("stuck", "held", lambda pod: pod["status"].get("containerStatuses"))
    code, text = api.ask("/containerLogs/default/stuck-node/main")
    assert code == 400
    assert text.startswith('container "main" in pod "stuck-node" is waiting to start')


def test_logs(api: NodeApi) -> None:
    code, text = api.ask("/containerLogs/default/web-node/talk")
    assert (code, sorted(text.split())) == (200, ["err", "out"])
    assert api.ask("/containerLogs/default/done-node/main") == (200, "bye\n")
    assert api.ask("/containerLogs/default/done-node/main?follow=true&tailLines=1&limitBytes=2") == (200, "by")
    _, stamped = api.ask("/containerLogs/default/done-node/main?timestamps=true")
    assert len(stamped.split()[0]) == len("2006-01-02T15:04:05.000000000Z")


def test_exec_reports_output_and_exit_code(api: NodeApi) -> None:
    with api.exec(POD, "talk", "sh", "-c", "echo hello; echo oops >&2; exit 3") as stream:
        printed = stream.all()
    assert printed[1] == b"hello\n" and printed[2] == b"oops\n"
    result = json.loads(printed[3])
    assert result["reason"] == "NonZeroExitCode"
    assert result["details"]["causes"] == [{"reason": "ExitCode", "message": "3"}]


def test_exec_with_input(api: NodeApi) -> None:
    with api.exec(POD, "talk", "head", "-c", "300000", stdin=b"") as stream:
        stream.send(0, b"x" * 300_000)
        assert len(stream.all()[1]) == 300_000


def test_a_client_that_leaves_ends_the_exec_connection_only(api: NodeApi) -> None:
    for _ in range(5):
        with api.exec(POD, "talk", "sleep", "1000") as stream:
            assert "101" in stream.head
    assert api.ask("/run/default/web-node/talk?cmd=echo+still+here", "POST") == (200, "still here\n")
    failed = api.ask("/run/default/web-node/talk?cmd=cat+/nothing", "POST")
    assert failed == (
        500,
        "command 'cat /nothing' exited with 1: cat: can't open '/nothing': No such file or directory\n",
    )


def test_attach(api: NodeApi) -> None:
    with api.stream(f"/attach/default/{POD}/cat?input=1&output=1") as stream:
        stream.send(0, b"ping\n")
        channel, data = next((c, d) for c, d in stream.frames() if d)
        assert (channel, data) == (1, b"ping\n")


def test_port_forward_needs_a_port(api: NodeApi) -> None:
    with pytest.raises(ConnectionError, match='query parameter "port" is required'):
        api.stream(f"/portForward/default/{POD}")
    with pytest.raises(ConnectionError, match="must be a number"):
        api.stream(f"/portForward/default/{POD}?port=70000")


async def test_the_certificate_is_kept_over_a_restart(agent: Agent, api: NodeApi) -> None:
    files = sorted(Path(agent.root, "pki").iterdir())
    assert [(file.name, oct(file.stat().st_mode & 0o777)) for file in files] == [
        ("kubelet.crt", "0o644"),
        ("kubelet.key", "0o600"),
    ]
    before = files[0].read_bytes()
    agent.kill9()
    agent.start()
    api.wait_listening()
    assert api.ask("/healthz") == (200, "ok")
    assert files[0].read_bytes() == before
    await agent.wait_running("web")


def summary_once(api: NodeApi, is_reported: Callable[[Json, Json], object]) -> tuple[Json, Json]:
    """The summary of the node and of the pod `web`, once `is_reported` holds of both: no answer waits for a disk to be walked."""
    until = time.monotonic() + 60
    while True:
        code, text = api.ask("/stats/summary")
        assert code == 200
        summary = json.loads(text)
        node, web = summary["node"], next(pod for pod in summary["pods"] if pod["podRef"]["name"] == POD)
        if is_reported(node, web):
            return node, web
        assert time.monotonic() < until, summary
        time.sleep(0.2)


def test_the_summary_of_what_is_used(api: NodeApi) -> None:
    def has_files(node: Json, web: Json) -> bool:
        return (
            "fs" in node
            and "imageFs" in node["runtime"]
            and all({"rootfs", "logs"} <= container.keys() for container in web["containers"])
        )

    node, web = summary_once(api, has_files)
    assert node["nodeName"] == "node"
    assert node["cpu"]["usageNanoCores"] > 0 and node["memory"]["workingSetBytes"] > 1 << 20
    assert {entry["name"] for entry in node["systemContainers"]} == {"kubelet", "pods"}
    assert node["fs"]["capacityBytes"] > node["fs"]["availableBytes"] > 0
    images = node["runtime"]["imageFs"]
    assert 0 <= images["usedBytes"] < images["capacityBytes"]  # containerd counts every ten seconds, and 0 until then
    assert node["rlimit"]["maxpid"] > node["rlimit"]["curproc"] > 0
    assert [c["name"] for c in web["containers"]] == ["cat", "talk"]
    for container in web["containers"]:
        assert container["cpu"]["usageCoreNanoSeconds"] > 0 and container["memory"]["usageBytes"] > 0
        assert container["rootfs"]["usedBytes"] >= 0 and container["logs"]["capacityBytes"] > 0
    assert web["network"]["name"] == "eth0" and web["network"]["rxBytes"] >= 0
    assert web["process_stats"]["process_count"] >= 3
    assert web["ephemeral-storage"]["usedBytes"] > 0


def test_the_summary_reports_volumes_once_they_were_walked(api: NodeApi) -> None:
    _, web = summary_once(api, lambda node, web: web.get("volume"))
    (volume,) = web["volume"]
    assert volume["name"] == "scratch" and volume["inodesUsed"] == 1
    assert volume["capacityBytes"] > volume["availableBytes"] > 0


def test_what_the_agent_has_counted_by_now(api: NodeApi) -> None:
    counted = (
        "pod_worker_duration_seconds_count",
        "cgroup_manager_duration_seconds_count",
        "pleg_last_seen_seconds",
        "pleg_pod_relist_duration_seconds_count",
        "evented_pleg_connection_success_count_total",
    )
    until = time.monotonic() + 60  # it was started anew some tests ago
    while True:
        reported = {
            name: sum(value for _, value in samples) for name, samples in parsed(api.ask("/metrics")[1]).items()
        }
        missing = [name for name in counted if not reported.get(f"kubelet_{name}")]
        if not missing:
            break
        assert time.monotonic() < until, missing
        time.sleep(0.2)
    assert reported["storage_operation_duration_seconds_count"] >= 1
    assert reported["volume_manager_total_volumes"] >= 2, "wanted and in place"


def test_the_brief_summary_and_the_resource_metrics(api: NodeApi) -> None:
    _, text = api.ask("/stats/summary?only_cpu_and_memory=true")
    brief = json.loads(text)
    assert "fs" not in brief["node"] and "network" not in brief["pods"][0]
    code, metrics = api.ask("/metrics/resource")
    assert code == 200
    names = {line.split("{")[0].split(" ")[0] for line in metrics.splitlines() if not line.startswith("#")}
    assert names >= {
        "node_cpu_usage_seconds_total",
        "node_memory_working_set_bytes",
        "container_cpu_usage_seconds_total",
        "container_memory_working_set_bytes",
        "container_start_time_seconds",
        "pod_cpu_usage_seconds_total",
        "pod_memory_working_set_bytes",
        "resource_scrape_error",
    }
    assert f'pod_memory_working_set_bytes{{namespace="default",pod="{POD}"}}' in metrics
    assert "resource_scrape_error 0" in metrics


def test_top_as_metrics_server_reads_it(api: NodeApi) -> None:
    def scrape() -> metrics_server.Batch:
        code, text = api.ask("/metrics/resource")
        assert code == 200
        return metrics_server.decode(text)

    def points(batch: metrics_server.Batch) -> dict[str, metrics_server.Point]:
        return batch.pods.get(("default", POD), {})

    first = scrape()
    assert first.node is not None and points(first).keys() == {"cat", "talk"}
    assert all(0 < point.started_at < point.at for point in points(first).values())
    shown: dict[str, tuple[float, float]] = {}
    while not shown:  # the answer to a second question within a second is the same
        shown = metrics_server.top(first, scrape())
    cores, memory = shown["node"]
    assert cores > 0 and memory > 1 << 20
    cores, memory = shown[POD]
    assert cores >= 0 and memory > 0
    assert shown.keys() <= {"node", POD}, "what has ended uses nothing"


def parsed(text: str) -> dict[str, list[tuple[dict[str, str], float]]]:
    """Samples by name, read by Prometheus' own parser."""
    found: dict[str, list[tuple[dict[str, str], float]]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found.setdefault(sample.name, []).append((sample.labels, sample.value))
    return found


def test_metrics_of_the_agent(api: NodeApi) -> None:
    code, text = api.ask("/metrics")
    assert code == 200
    reported = parsed(text)
    assert reported["kubelet_node_name"] == [({"node": "node"}, 1.0)]
    assert ({"static": "true"}, 3.0) in reported["kubelet_desired_pods"]
    assert ({"container_state": "running"}, 2.0) in reported["kubelet_running_containers"]
    assert reported["process_resident_memory_bytes"][0][1] > 20 << 20
    assert {labels["name"] for labels, _ in reported["kubernetes_feature_enabled"]} >= {"ContainerStopSignals"}
    assert parsed(api.ask("/metrics/slis")[1])["kubernetes_healthcheck"]
    assert parsed(api.ask("/metrics/probes")[1])["process_start_time_seconds"]


def test_metrics_of_containers(api: NodeApi) -> None:
    code, text = api.ask("/metrics/cadvisor")
    assert code == 200
    reported = parsed(text)

    def of(name: str, container: str) -> list[float]:
        return [value for labels, value in reported[name] if (labels["pod"], labels["container"]) == (POD, container)]

    for name in (
        "container_cpu_usage_seconds_total",
        "container_memory_working_set_bytes",
        "container_start_time_seconds",
    ):
        assert all(value > 0 for value in of(name, "talk")), name
        assert len(of(name, "talk")) == 1, name
        assert len(of(name, "")) == 2, name  # the pod, and its pause container
    assert of("container_processes", "talk")[0] >= 1 and of("container_file_descriptors", "talk")[0] >= 3
    assert of("container_ulimits_soft", "talk")[0] >= 1024
    assert of("container_fs_reads_bytes_total", "talk") and of("container_fs_writes_total", "talk")
    assert {labels["interface"] for labels, _ in reported["container_network_receive_bytes_total"]} >= {"eth0"}
    assert reported["machine_memory_bytes"][0][1] > 1 << 30
    assert reported["container_scrape_error"] == [({}, 0.0)]


def test_the_agent_about_itself(api: NodeApi) -> None:
    code, text = api.ask("/debug/pprof/goroutine")
    assert code == 200 and "status-project" in text
    assert " dict\n" in api.ask("/debug/pprof/heap")[1]
    code, profile = api.ask("/debug/pprof/profile?seconds=1")
    assert code == 200 and all(line.rsplit(" ", 1)[1].isdigit() for line in profile.splitlines())
    assert api.ask("/debug/pprof/profile?seconds=9999")[0] == 400
    assert "kubelet statusz" in api.ask("/statusz")[1]
    assert {pod["name"] for pod in json.loads(api.ask("/debug/pods")[1])["pods"]} >= {POD}
    assert json.loads(api.ask(f"/debug/pods/default/{POD}")[1])["timeline"]
    assert "root-dir=" in api.ask("/flagz")[1]
    assert api.ask("/debug/flags/v", "PUT", b"5") == (200, "successfully set klog.logging.verbosity to 5")
    assert api.ask("/debug/flags/v", "PUT", b"loud")[0] == 400
    assert parsed(api.ask("/metrics")[1])["pykubelet_event_loop_lag_seconds_count"][0][1] >= 1


def test_a_checkpoint_that_the_runtime_cannot_make(api: NodeApi) -> None:
    code, text = api.ask(f"/checkpoint/default/{POD}/talk", "POST")
    assert code == 500
    assert text.startswith(f"checkpointing of default/{POD}/talk failed (rpc error: code")
    assert api.ask("/checkpoint/default/missing/x", "POST") == (404, "pod does not exist")


async def test_pod_resources_by_grpc(agent: Agent, api: NodeApi) -> None:
    path = f"{agent.root}/pod-resources/kubelet.sock"
    async with grpc.aio.insecure_channel(f"unix:{path}", options=(("grpc.default_authority", "localhost"),)) as channel:
        listed = await channel.unary_unary("/v1.PodResourcesLister/List", None, None)(b"")
        pods = {pod.name: pod for pod in pb.ListPodResourcesResponse.FromString(listed).pod_resources}
        assert [container.name for container in pods[POD].containers] == ["talk", "cat"]
        assert "done-node" not in pods
        asked = pb.GetPodResourcesRequest(pod_name=POD, pod_namespace="default").SerializeToString()
        answer = pb.GetPodResourcesResponse.FromString(
            await channel.unary_unary("/v1.PodResourcesLister/Get", None, None)(asked)
        )
        assert answer.pod_resources.name == POD
        asked = pb.GetPodResourcesRequest(pod_name="missing", pod_namespace="default").SerializeToString()
        with pytest.raises(grpc.aio.AioRpcError, match="pod missing in namespace default not found"):
            await channel.unary_unary("/v1.PodResourcesLister/Get", None, None)(asked)
    reported = parsed(api.ask("/metrics")[1])
    counted = {
        name.removeprefix("kubelet_pod_resources_endpoint_"): value for name, [(_, value), *_] in reported.items()
    }
    assert (counted["requests_list_total"], counted["requests_get_total"], counted["errors_get_total"]) == (1, 2, 1)


async def test_pods_by_grpc(agent: Agent, api: NodeApi) -> None:
    """List, get, and what a watch has of a static pod that comes and goes."""
    socket = Path(agent.root, "pods-api/pods-api.sock")
    assert socket.stat().st_mode & 0o777 == 0o600
    options = (("grpc.default_authority", "localhost"),)
    async with grpc.aio.insecure_channel(f"unix:{socket}", options=options) as channel:
        listed = pods_pb2.ListPodsResponse.FromString(
            await channel.unary_unary("/v1alpha1.Pods/ListPods", None, None)(b"")
        )
        pods = {pod.metadata.name: pod for pod in map(read_pod, listed.pods)}
        assert [container.name for container in pods[POD].spec.containers] == ["talk", "cat"]
        assert (pods[POD].status.phase, pods["done-node"].status.phase) == ("Running", "Failed")
        asked = pods_pb2.GetPodRequest(podUID=pods[POD].metadata.uid).SerializeToString()
        answer = await channel.unary_unary("/v1alpha1.Pods/GetPod", None, None)(asked)
        assert read_pod(pods_pb2.GetPodResponse.FromString(answer).pod).metadata.name == POD

        watch = channel.unary_stream("/v1alpha1.Pods/WatchPods", None, None)(b"", timeout=120)
        events = (pods_pb2.WatchPodsEvent.FromString(data) async for data in watch)
        initial = []
        async for event in events:
            if event.type == pods_pb2.INITIAL_SYNC_COMPLETE:
                break
            initial.append((event.type, read_pod(event.pod).metadata.name))
        assert {(pods_pb2.ADDED, POD), (pods_pb2.ADDED, "stuck-node")} <= set(initial)
        agent.put(make_pod("brief", make_container(script="sleep 3600"), terminationGracePeriodSeconds=0))
        seen: list[tuple[int, str]] = []
        async for event in events:
            pod = read_pod(event.pod)
            if pod.metadata.name == "brief-node":
                seen.append((event.type, pod.status.phase))
                if pod.status.phase == "Running" and seen.count(seen[-1]) == 1:  # it may change while it runs
                    agent.remove("brief")
                if event.type == pods_pb2.DELETED:
                    break
        assert (seen[0], seen[-1]) == ((pods_pb2.ADDED, "Pending"), (pods_pb2.DELETED, ""))
        assert {type_ for type_, _ in seen[1:-1]} == {pods_pb2.MODIFIED}
        watch.cancel()
    reported = parsed(api.ask("/metrics")[1])
    assert [value for _, value in reported["kubelet_pod_requests_list_total"]] == [1]
