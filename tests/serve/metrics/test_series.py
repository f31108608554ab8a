"""Pages of metrics stay small, however many pods, drivers and devices come and go."""

from __future__ import annotations

import pytest
from serve.metrics.test_golden import everything_used, modules

from pykubelet.base.kit.exposition import render_metrics
from pykubelet.base.kit.metrics import MAX_SERIES, PROBES, REGISTRY, Counter, Gauge, Histogram, Registry
from pykubelet.base.kit.values import replace
from pykubelet.base.model.ids import PodRef, PodUID
from pykubelet.base.model.probes import ProbeKind
from pykubelet.observe.probes.metrics import FAILED, SUCCESSFUL, ProbeMetrics
from pykubelet.serve.metrics.cadvisor import MachineFacts, cadvisor_families
from pykubelet.serve.metrics.resource import resource_families

__all__ = ["modules"]
MANY = 10_000
MACHINE = MachineFacts(2, 1, 1, 1 << 30, 0, "boot", "machine", "system", "6.1", "Linux")
#: Labels with values of the agent itself, and how many there can be.
OWN = {
    "access_mode": "access modes",
    "assignment_type": "ways to assign resources",
    "boundary": "numa_node, physical_cpu",
    "call": "the calls of the protocol of extensions",
    "config_mode": "levels of resources",
    "priority_bucket": "classes of priorities",
    "qos_class": "QoS classes",
    "resolution": "ends of a deferral",
    "code": "reasons of failed starts, and HTTP status codes",
    "container_type": "kinds of containers",
    "eviction_signal": "signals",
    "extension": "the extensions of the command line",
    "grpc_status_code": "gRPC's codes",
    "hash": "the configuration of credential providers, which is read once",
    "host": "the API server",
    "image_size_in_bytes": "classes of sizes",
    "is_error": "true, false",
    "long_running": "true, false",
    "method": "HTTP methods, others are `other`",
    "method_name": "the methods that the agent calls",
    "metric_source": "ways to measure",
    "migrated": "true, false",
    "numa_node": "the machine's NUMA nodes",
    "operation": "kinds of resizes",
    "point": "points of extensions",
    "operation_name": "kinds of operations",
    "operation_type": "the methods that the agent calls",
    "path": "the paths of the table of endpoints, others are `other`",
    "preemption_signal": "resources",
    "present_locally": "true, false",
    "probe_type": "kinds of probes",
    "pull_policy": "pull policies",
    "pull_required": "true, false",
    "reason_detail": "details of infeasible resizes",
    "requirement": "limits, requests",
    "resource": "cpu, memory",
    "result": "results",
    "scope": "container, pod",
    "server_api_version": "versions of the pod resources API and of the Pods API",
    "server_type": "readwrite, readonly",
    "source": "node, pod",
    "static": "true, empty",
    "status_code": "codes of gRPC",
    "status": "results of operations",
    "subresource": "exec, attach, portforward",
    "success": "true, false",
    "verb": "verbs of requests",
    "version": "one version of Kubernetes",
}
#: Labels whose values others choose: users of pods, plugins, programs in containers, the runtime.
FOREIGN = {
    "container",
    "driver_name",
    "exit_code",
    "namespace",
    "plugin_name",
    "pod",
    "pod_uid",
    "reason",
    "resource_name",
    "runtime_handler",
    "volume_plugin",
}


@pytest.mark.usefixtures("modules")
def test_it_is_known_of_every_label_who_chooses_its_values() -> None:
    labels = {label for registry in (REGISTRY, PROBES) for metric in registry for label in metric.labels}
    assert labels - OWN.keys() - FOREIGN == set(), "say who chooses the values of a new label"
    assert (OWN.keys() | FOREIGN) - labels == set()


@pytest.mark.usefixtures("modules")
def test_names_that_others_choose_do_not_grow_a_page_without_end() -> None:
    registry = Registry()
    for metric in (*REGISTRY, *PROBES):
        if FOREIGN & set(metric.labels):
            type(metric)(metric.name, metric.help, metric.labels, registry=registry)

    for copy in registry:
        for number in range(MANY):
            values = tuple(f"{label}-{number}" if label in FOREIGN else "x" for label in copy.labels)
            match copy:
                case Counter():
                    copy.inc(*values)
                case Histogram():
                    copy.observe(1.0, *values)
                case Gauge():
                    copy.set(1.0, *values)
        lines = len(list(copy.family().samples))
        # a histogram has 12 buckets, a sum and a count
        assert lines == (MAX_SERIES + 1) * (14 if isinstance(copy, Histogram) else 1), copy.name


def test_pods_that_are_gone_leave_no_series() -> None:
    before = render_metrics(PROBES.families())
    for number in range(MANY):
        ref = PodRef("default", f"web-{number}", PodUID(f"uid-{number}"))
        for kind in ProbeKind:
            probe = ProbeMetrics(ref, "app", kind)
            probe.count(SUCCESSFUL, 0.1)
            probe.count(FAILED, 0.1)
            probe.forget()
    assert render_metrics(PROBES.families()) == before


def test_pages_of_usage_have_the_pods_that_are_there_and_no_others() -> None:
    usage = everything_used()
    [pod] = usage.pods.values()

    def sizes(number: int) -> tuple[int, int]:
        ref = PodRef("default", f"web-{number}", PodUID(f"uid-{number}"))
        now = replace(usage, pods={ref.uid: replace(pod, ref=ref)})
        return len(render_metrics(cadvisor_families(now, MACHINE))), len(render_metrics(resource_families(now)))

    assert sizes(10_000) == sizes(19_999) == sizes(99_999)
