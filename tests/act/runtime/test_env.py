import time
from functools import partial
from itertools import pairwise
from typing import Any

import pytest
from act.runtime.rendering import CONTEXT, GIB, SETTINGS, make_container, make_pod, with_resources
from hypothesis import given
from hypothesis import strategies as st
from support.cost import count_instructions, pause_limit_s

from pykubelet.act.runtime.render.context import (
    AnyContainer,
    ApiObjects,
    ContainerContext,
    EnvFile,
    RenderSettings,
    Unavailable,
)
from pykubelet.act.runtime.render.env import UNREADABLE, build_environment, parse_env_file
from pykubelet.act.runtime.start_error import ContainerStartError
from pykubelet.base.api import core
from pykubelet.base.kit.values import replace
from pykubelet.base.model.arguments import ArgumentSpace, ArgumentsTooLongError
from pykubelet.base.model.lifecycle import StartError
from pykubelet.base.model.mounts import MountedVolume
from pykubelet.base.model.placement import Devices

OBJECTS = ApiObjects(
    config_maps={"cm": core.ConfigMap(data={"a": "1", "b": "2"}), "gone": Unavailable("boom")},
    secrets={"s": core.Secret(data={"b": b"secret", "bin": b"\xff"})},
)


def make_environment(pod: core.Pod, container: AnyContainer, settings: RenderSettings, ctx: ContainerContext) -> Any:
    """The variables, or the error as a value."""
    try:
        return build_environment(pod, container, settings, ctx, ArgumentSpace())
    except ContainerStartError as error:
        return error.value
    except ArgumentsTooLongError as error:
        return StartError("CreateContainerConfigError", str(error))


def environment(env: list[dict[str, Any]], ctx: ContainerContext = CONTEXT, env_from: Any = (), **spec: Any) -> Any:
    container = make_container(env=env, envFrom=list(env_from))
    spec.setdefault("nodeName", "node-1")
    return make_environment(make_pod(container, **spec), container, SETTINGS, ctx)


def refused(result: Any) -> str:
    assert isinstance(result, StartError)
    assert result.reason == "CreateContainerConfigError"
    return result.message


def source(kind: str, **fields: Any) -> list[dict[str, Any]]:
    return [{"name": "X", "valueFrom": {kind: fields}}]


def test_values_refer_to_what_is_defined_before_them() -> None:
    env = [
        {"name": "A", "value": "$(B) $(SVC_HOST)"},
        {"name": "B", "value": "b"},
        {"name": "C", "value": "$(B)$$(B)"},
        {"name": "EMPTY", "value": ""},
    ]
    ctx = replace(CONTEXT, services={"SVC_HOST": "10.0.0.9", "B": "service-b"})
    assert environment(env, ctx) == {
        "A": "service-b 10.0.0.9",
        "B": "b",
        "C": "b$(B)",
        "EMPTY": "",
        "SVC_HOST": "10.0.0.9",
    }


def test_later_definitions_win_over_earlier_and_own_over_services() -> None:
    ctx = replace(CONTEXT, services={"X": "service", "Y": "service"}, devices=Devices(env={"X": "device", "D": "d"}))
    assert environment([{"name": "X", "value": "1"}, {"name": "X", "value": "$(X)2"}], ctx) == {
        "X": "12",
        "D": "d",
        "Y": "service",
    }


def test_env_from_in_order_with_prefixes_then_env() -> None:
    env_from = [
        {"configMapRef": {"name": "cm"}},
        {"secretRef": {"name": "s"}},
        {"prefix": "P_", "configMapRef": {"name": "cm"}},
    ]
    found = environment([{"name": "a", "value": "own $(b)"}], replace(CONTEXT, api_objects=OBJECTS), env_from)
    assert found == {"a": "own secret", "b": "secret", "bin": "\udcff", "P_a": "1", "P_b": "2"}


def test_keys_of_objects() -> None:
    ctx = replace(CONTEXT, api_objects=OBJECTS)
    assert environment(source("configMapKeyRef", name="cm", key="a"), ctx) == {"X": "1"}
    assert environment(source("secretKeyRef", name="s", key="b"), ctx) == {"X": "secret"}


@pytest.mark.parametrize(
    ("env", "message"),
    [
        (source("configMapKeyRef", name="cm", key="z"), "couldn't find key z in ConfigMap shop/cm"),
        (source("secretKeyRef", name="s", key="z"), "couldn't find key z in Secret shop/s"),
        (source("configMapKeyRef", name="none", key="a"), 'configmap "none" not found'),
        (source("secretKeyRef", name="none", key="a"), 'secret "none" not found'),
        (source("configMapKeyRef", name="gone", key="a", optional=True), "boom"),
    ],
)
def test_references_that_lead_nowhere(env: Any, message: str) -> None:
    assert refused(environment(env, replace(CONTEXT, api_objects=OBJECTS))) == message


@pytest.mark.parametrize(
    "env",
    [
        source("configMapKeyRef", name="cm", key="z", optional=True),
        source("secretKeyRef", name="none", key="z", optional=True),
        source("secretKeyRef", name="s", key="z", optional=True),
    ],
)
def test_optional_references_leave_the_variable_out(env: Any) -> None:
    assert environment(env, replace(CONTEXT, api_objects=OBJECTS)) == {}


def test_optional_env_from_is_skipped() -> None:
    ctx = replace(CONTEXT, api_objects=OBJECTS)
    assert environment([], ctx, [{"configMapRef": {"name": "none", "optional": True}}]) == {}
    assert refused(environment([], ctx, [{"secretRef": {"name": "none"}}])) == 'secret "none" not found'


def test_without_an_api_server_objects_are_refused() -> None:
    assert refused(environment(source("configMapKeyRef", name="cm", key="a"))) == (
        "couldn't get configMap shop/cm, no kubeClient defined"
    )
    assert refused(environment([], env_from=[{"secretRef": {"name": "s", "optional": True}}])) == (
        "couldn't get secret shop/s, no kubeClient defined"
    )


def test_services_must_be_known_except_for_static_pods() -> None:
    ctx = replace(CONTEXT, services=None)
    assert refused(environment([], ctx)) == "services have not yet been read at least once, cannot construct envvars"
    pod = make_pod(metadata={"annotations": {"kubernetes.io/config.source": "file"}})
    assert make_environment(pod, pod.spec.containers[0], SETTINGS, ctx) == {}
    assert refused(environment([], enableServiceLinks=None)) == (
        "nil pod.spec.enableServiceLinks encountered, cannot construct envvars"
    )


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("metadata.name", "web"),
        ("metadata.namespace", "shop"),
        ("metadata.uid", "uid-1"),
        ("metadata.labels['app.kubernetes.io/name']", "shop-web"),
        ("metadata.labels['absent']", ""),
        ("metadata.annotations['Note']", "n"),
        ("spec.nodeName", "node-1"),
        ("spec.serviceAccountName", "robot"),
        ("status.hostIP", "10.0.0.1"),
        ("status.hostIPs", "10.0.0.1,fd00::1"),
        ("status.podIP", "10.1.0.7"),
        ("status.podIPs", "10.1.0.7,fd01::7"),
    ],
)
def test_fields_of_the_pod(path: str, expected: str) -> None:
    container = make_container(env=source("fieldRef", fieldPath=path))
    metadata = {"labels": {"app.kubernetes.io/name": "shop-web"}, "annotations": {"Note": "n"}}
    pod = make_pod(container, metadata=metadata, nodeName="node-1", serviceAccountName="robot")
    ctx = replace(CONTEXT, pod_ips=("10.1.0.7", "fd01::7"), host_ips=("10.0.0.1", "fd00::1"))
    assert make_environment(pod, container, SETTINGS, ctx) == {"X": expected}


@pytest.mark.parametrize(("path", "expected"), [("status.podIP", "10.1.0.7"), ("status.podIPs", "10.1.0.7,fd01::7")])
def test_addresses_are_in_the_order_of_the_status_whatever_the_runtimes(path: str, expected: str) -> None:
    ctx = replace(CONTEXT, pod_ips=("fd01::7", "fd01::8", "10.1.0.7"), host_ips=("10.0.0.1",))
    assert environment(source("fieldRef", fieldPath=path), ctx) == {"X": expected}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"fieldPath": "spec.restart"}, "field label not supported: spec.restart"),
        ({"fieldPath": "spec.x['y']"}, "field label does not support subscript: spec.x['y']"),
        ({"fieldPath": "metadata.name", "apiVersion": "v2"}, "unsupported pod version: v2"),
        ({"fieldPath": "metadata.labels['a b']"}, "invalid key subscript in metadata.labels['a b']: "),
    ],
)
def test_fields_that_are_not_offered(fields: dict[str, str], message: str) -> None:
    assert refused(environment(source("fieldRef", **fields))).startswith(message)


def test_host_address_unknown() -> None:
    assert "no known address" in refused(environment(source("fieldRef", fieldPath="status.hostIP"), ContainerContext()))
    assert environment(source("fieldRef", fieldPath="status.podIP"), ContainerContext()) == {"X": ""}


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"resource": "requests.cpu"}, "1"),
        ({"resource": "requests.cpu", "divisor": "1m"}, "250"),
        ({"resource": "limits.cpu", "divisor": "100m"}, "15"),
        ({"resource": "limits.cpu"}, "2"),
        ({"resource": "requests.memory"}, str(64 << 20)),
        ({"resource": "requests.memory", "divisor": "1Mi"}, "64"),
        ({"resource": "limits.memory", "divisor": "1Gi"}, "15"),
        ({"resource": "limits.ephemeral-storage", "divisor": "1Gi"}, "100"),
        ({"resource": "requests.ephemeral-storage"}, "0"),
        ({"resource": "limits.hugepages-2Mi", "divisor": "1Mi"}, "8"),
        ({"resource": "requests.hugepages-1Gi"}, "0"),
        ({"resource": "limits.cpu", "containerName": "other"}, "4"),
        ({"resource": "requests.memory", "containerName": "setup", "divisor": "1k"}, "6"),
        ({"resource": "limits.cpu", "divisor": "0"}, "2"),
    ],
)
def test_resources_round_up_and_default_to_the_node(fields: dict[str, str], expected: str) -> None:
    app = with_resources(
        requests={"cpu": "250m", "memory": "64Mi"},
        limits={"cpu": "1500m", "hugepages-2Mi": "8Mi"},
        env=source("resourceFieldRef", **fields),
    )
    setup = with_resources("setup", requests={"memory": "5001"})
    pod = make_pod(app, make_container(name="other"), init=(setup,))
    assert make_environment(pod, app, SETTINGS, CONTEXT) == {"X": expected}


def test_pod_level_limits_stand_in_before_the_node() -> None:
    env = source("resourceFieldRef", resource="limits.memory")
    assert environment(env, resources={"limits": {"memory": "2Gi"}}) == {"X": str(2 * GIB)}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"resource": "limits.gpu"}, "unsupported container resource : limits.gpu"),
        ({"resource": "cpu"}, "unsupported container resource : cpu"),
        ({"resource": "limits.cpu", "containerName": "missing"}, "container missing not found"),
    ],
)
def test_resources_that_are_not_offered(fields: dict[str, str], message: str) -> None:
    assert refused(environment(source("resourceFieldRef", **fields))) == message


FILE = "# made by setup\n\n  A='one'\nB='two\nlines' # note\nC=''\nEND='$(A)'"


def read_env_file(text: str, key: str) -> str | None:
    return parse_env_file(text, {key}).find(key)


@pytest.mark.parametrize(
    ("key", "expected"), [("A", "one"), ("B", "two\nlines"), ("C", ""), ("END", "$(A)"), ("NONE", "")]
)
def test_reading_env_files(key: str, expected: str) -> None:
    assert read_env_file(FILE, key) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("export A='one'\n1/2='x'\nK='v'", "v"),
        ("A= 'ignored\nB=\t\nK='v'", "v"),
        ("K= 'v'", ""),
        ("export K='v'", ""),
        ("K='v'\r\nbroken", "v"),
        ("K='a\r\nb'\t#c", "a\nb"),
        ("K='1'\nK='2'", "1"),
        ("A='\n" + "\n" * 1_000_000 + "'\nK='v'", "v"),
    ],
    ids=range(8),
)
def test_env_files_are_read_as_a_shell_would(text: str, expected: str) -> None:
    assert read_env_file(text, "K") == expected


@pytest.mark.parametrize(
    "text",
    ["K=plain", 'K="x"', "K = 'x'", "K='x''y'", "K='x", "K=", " ='x'", "='x'", "K='x' y", "A\nK='x'", "A=x\nK='x'"],
)
def test_env_files_of_another_form(text: str) -> None:
    assert read_env_file(text, "K") is None


@given(st.text())
def test_any_file_is_read_or_refused(text: str) -> None:
    assert read_env_file(text, "K") is None or isinstance(read_env_file(text, "K"), str)


def from_file(text: str | None, **fields: Any) -> Any:
    ctx = replace(
        CONTEXT,
        mounts={"conf": MountedVolume("conf", "kubernetes.io/empty-dir", "/v")},
        env_files={("conf", "a.env"): EnvFile(problem=UNREADABLE) if text is None else parse_env_file(text, {"A"})},
    )
    env = source("fileKeyRef", **{"volumeName": "conf", "path": "a.env", "key": "A", **fields})
    return environment(env, ctx)


def test_variables_from_files() -> None:
    assert from_file(FILE) == {"X": "one"}
    assert from_file(FILE, key="NONE", optional=True) == {}
    assert refused(from_file(FILE, key="NONE")) == 'environment variable key "NONE" not found in file "/v/a.env"'
    assert refused(from_file(None, optional=True)) == "couldn't parse env file"
    assert refused(from_file("A=x")) == "couldn't parse env file"
    assert refused(from_file(FILE, volumeName="v2")) == 'cannot find the volume "v2" referenced by FileKeyRef'
    assert refused(from_file("A='" + "x" * 32769 + "'")) == (
        'environment variable value for key "A" exceeds maximum size of 32KB'
    )
    assert refused(from_file(FILE, key="k" * 129)).endswith("exceeds maximum length of 128 characters")


@given(st.lists(st.tuples(st.sampled_from("ABC"), st.text(alphabet="$()ABC=x", max_size=6)), max_size=6))
def test_order_alone_decides(pairs: list[tuple[str, str]]) -> None:
    """The value of a name is that of its last definition, expanded with what stood before it."""
    found = environment([{"name": name, "value": value} for name, value in pairs])
    assert set(found) == {name for name, _ in pairs}
    if pairs:
        name, value = pairs[-1]
        if "$" not in value:
            assert found[name] == value


# Bounds: what no program can be started with is refused, and never built


def grown(levels: int) -> list[dict[str, str]]:
    """A variable of ten bytes, and others that each refer ten times to the one before."""
    names = [f"A{level}" for level in range(levels + 1)]
    return [{"name": "A0", "value": "0123456789"}] + [
        {"name": name, "value": f"$({before})" * 10} for before, name in pairwise(names)
    ]


def test_variables_that_refer_to_each_other_have_a_bound() -> None:
    assert len(environment(grown(4))["A4"]) == 100_000
    assert refused(environment(grown(40))) == (
        "env[A5] is longer than 131071 bytes, the most that Linux passes to a program"
    )


def test_the_bound_of_a_variable_is_that_of_the_kernel() -> None:
    assert len(environment([{"name": "A", "value": "a" * 131_069}])["A"]) == 131_069
    assert "env[A] is longer than" in refused(environment([{"name": "A", "value": "a" * 131_070}]))
    assert "env[A] is longer than" in refused(environment([{"name": "A", "value": "ä" * 65_535}]))


def test_all_variables_together_have_a_bound() -> None:
    big = replace(
        CONTEXT,
        api_objects=ApiObjects(config_maps={"cm": core.ConfigMap(data={f"k{n:05}": "" for n in range(40_000)})}),
    )
    sources = [core.EnvFromSource(prefix=f"P{n}_", configMapRef=core.ConfigMapEnvSource(name="cm")) for n in range(9)]
    assert len(environment([], big, sources[:2])) == 80_000
    assert refused(environment([], big, sources)) == (
        "with env[P2_k30376], command, args and env together are longer than 2097152 bytes, the most that Linux passes to a program"
    )


def test_a_replaced_variable_takes_no_space() -> None:
    assert len(environment([{"name": "A", "value": str(n) + "a" * 100_000} for n in range(100)])["A"]) == 100_002


def test_services_and_devices_count() -> None:
    many = {f"S{n:05}": "" for n in range(130_000)}
    assert "together are longer than" in refused(environment([], replace(CONTEXT, services=many)))
    assert "together are longer than" in refused(environment([], replace(CONTEXT, devices=Devices(env=many))))


def test_many_keys_of_one_secret_cost_no_more_than_their_own_values() -> None:
    secret = core.Secret(data={f"k{n}": b"v" * 90 for n in range(10_000)})
    ctx = replace(CONTEXT, api_objects=ApiObjects(secrets={"s": secret}))
    env = [{"name": f"E{n}", "valueFrom": {"secretKeyRef": {"name": "s", "key": f"k{n}"}}} for n in range(10_000)]
    began = time.thread_time()
    assert len(environment(env, ctx)) == 10_000
    assert time.thread_time() - began < 20 * pause_limit_s()


def test_a_source_that_is_given_often_is_taken_once_where_it_is_given_last() -> None:
    large = ApiObjects(
        config_maps={
            "cm": core.ConfigMap(data={f"k{n}": "cm" for n in range(1000)}),
            "other": core.ConfigMap(data={"k1": "other"}),
        }
    )
    of_map, of_other = {"configMapRef": {"name": "cm"}}, {"configMapRef": {"name": "other"}}
    ctx = replace(CONTEXT, api_objects=large)
    assert environment([], ctx, [of_map, of_other, of_map])["k1"] == "cm"
    assert environment([], ctx, [of_other, of_map, of_other])["k1"] == "other"
    assert {"k1", "P_k1"} <= environment([], ctx, [of_map, {**of_map, "prefix": "P_"}]).keys()
    once, often = ([of_map] * number for number in (1, 500))
    containers = [make_container(envFrom=sources) for sources in (once, often)]
    pods = [make_pod(container, nodeName="node-1") for container in containers]
    counts = [
        count_instructions(partial(make_environment, pod, container, SETTINGS, ctx))
        for pod, container in zip(pods, containers, strict=True)
    ]
    assert counts[1] < 2 * counts[0]


def test_a_missing_source_is_missed_although_it_is_optional_elsewhere() -> None:
    sources = [{"configMapRef": {"name": "no", "optional": optional}} for optional in (False, True)]
    for given_sources in (sources, sources[::-1]):
        assert '"no" not found' in refused(environment([], replace(CONTEXT, api_objects=OBJECTS), given_sources))
