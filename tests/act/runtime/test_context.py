"""What a start takes from the API server, as act/runtime sees it."""

from __future__ import annotations

from typing import Any

from act.runtime.failures import refusal

from pykubelet.act.runtime.render.context import (
    Unavailable,
    environment_objects,
    runtime_handler,
    service_environment,
    service_variables,
    unanswered,
    waits_for_services,
)
from pykubelet.base.api.codec import from_object
from pykubelet.base.api.core import ConfigMap, Pod, RuntimeClass, Secret, Service
from pykubelet.base.model.content import Absent, Content, ContentKind, Found, ObjectKey, Present, Unreadable


def pod(**spec: Any) -> Pod:
    return from_object(Pod, {"metadata": {"name": "web", "namespace": "shop", "uid": "u1"}, "spec": spec})


def service(name: str, address: str, *ports: dict[str, Any], namespace: str = "shop") -> Service:
    plain = {"metadata": {"name": name, "namespace": namespace}, "spec": {"clusterIP": address, "ports": ports}}
    return from_object(Service, plain)


def with_services(*services: Service) -> Content:
    return Content(True, services=services)


MASTER = service("kubernetes", "10.0.0.1", {"name": "https", "port": 443}, namespace="default")


def test_the_variables_of_a_service() -> None:
    made = service_variables(
        [service("my-db", "10.0.0.9", {"name": "sql-port", "port": 5432}, {"port": 53, "protocol": "UDP"})]
    )
    assert made == {
        "MY_DB_SERVICE_HOST": "10.0.0.9",
        "MY_DB_SERVICE_PORT": "5432",
        "MY_DB_SERVICE_PORT_SQL_PORT": "5432",
        "MY_DB_PORT": "tcp://10.0.0.9:5432",
        "MY_DB_PORT_5432_TCP": "tcp://10.0.0.9:5432",
        "MY_DB_PORT_5432_TCP_PROTO": "tcp",
        "MY_DB_PORT_5432_TCP_PORT": "5432",
        "MY_DB_PORT_5432_TCP_ADDR": "10.0.0.9",
        "MY_DB_PORT_53_UDP": "udp://10.0.0.9:53",
        "MY_DB_PORT_53_UDP_PROTO": "udp",
        "MY_DB_PORT_53_UDP_PORT": "53",
        "MY_DB_PORT_53_UDP_ADDR": "10.0.0.9",
    }


def test_an_address_of_six_has_brackets_in_urls_only() -> None:
    made = service_variables([service("a", "fd00::1", {"port": 1})])
    assert (made["A_SERVICE_HOST"], made["A_PORT"], made["A_PORT_1_TCP_ADDR"]) == (
        "fd00::1",
        "tcp://[fd00::1]:1",
        "fd00::1",
    )


def test_a_pod_sees_the_services_of_its_namespace_and_always_the_api_server() -> None:
    content = with_services(
        MASTER,
        service("own", "10.0.0.2", {"port": 1}),
        service("headless", "None", {"port": 1}),
        service("elsewhere", "", {"port": 1}),
        service("foreign", "10.0.0.3", {"port": 1}, namespace="other"),
    )
    linked, alone = (service_environment(pod(enableServiceLinks=links), content) for links in (True, False))
    assert isinstance(linked, dict) and isinstance(alone, dict)
    assert {name for name in linked if name.endswith("_HOST")} == {"KUBERNETES_SERVICE_HOST", "OWN_SERVICE_HOST"}
    assert {name for name in alone if name.endswith("_HOST")} == {"KUBERNETES_SERVICE_HOST"}


def test_a_service_of_the_same_name_takes_the_place_of_the_api_servers() -> None:
    own = service("kubernetes", "10.9.9.9", {"port": 1})
    for services in ((MASTER, own), (own, MASTER)):
        made = service_environment(pod(enableServiceLinks=True), with_services(*services))
        assert isinstance(made, dict) and made["KUBERNETES_SERVICE_HOST"] == "10.9.9.9"


def test_variables_of_more_ports_than_a_program_can_have_are_refused() -> None:
    ports = [{"port": 1 + number} for number in range(5_000)]
    two = [service("a", "10.0.0.1", *ports), service("b", "10.0.0.2", *ports)]
    made = service_environment(pod(enableServiceLinks=True), with_services(*two))
    assert isinstance(made, dict) and made["B_PORT_5000_TCP_PORT"] == "5000"
    third = with_services(*two, service("c", "10.0.0.3", {"port": 1}))
    refused = refusal(service_environment, pod(enableServiceLinks=True), third)
    assert (refused.reason, refused.message) == (
        "CreateContainerConfigError",
        "the services of the pod's namespace have 10001 ports, and variables are made of 10000 at most: set enableServiceLinks to false",
    )
    assert service_environment(pod(enableServiceLinks=False), third) == {}


def test_services_are_waited_for_by_pods_of_the_api_server_only() -> None:
    unknown = Content(True)
    static = from_object(Pod, {"metadata": {"annotations": {"kubernetes.io/config.source": "file"}}})
    assert service_environment(pod(), unknown) is None
    assert service_environment(pod(), Content()) == {}
    assert waits_for_services(pod(), unknown) and not waits_for_services(static, unknown)
    assert not waits_for_services(pod(), Content()) and not waits_for_services(pod(), with_services())


def test_the_environments_objects_by_name() -> None:
    keys = {name: ObjectKey(kind, "shop", name) for kind, name in KINDS}
    found: dict[ObjectKey, Found] = {
        keys["m"]: Present(ConfigMap(data={"a": "1"})),
        keys["gone"]: Absent('configmap "gone" not found'),
        keys["s"]: Present(Secret(data={"b": b"2"})),
        keys["away"]: Unreadable("failed to sync secret cache: no", 1.0),
    }
    sources = [
        {"configMapRef": {"name": "m"}},
        {"configMapRef": {"name": "gone"}},
        {"secretRef": {"name": "s"}},
        {"secretRef": {"name": "away"}},
    ]
    asking = pod(containers=[{"name": "main", "envFrom": sources}])
    objects = environment_objects(asking, asking.spec.containers[0], Content(True, found))
    assert objects is not None
    assert objects.config_maps == {
        "m": ConfigMap(data={"a": "1"}),
        "gone": Unavailable('configmap "gone" not found', not_found=True),
    }
    assert objects.secrets == {"s": Secret(data={"b": b"2"}), "away": Unavailable("failed to sync secret cache: no")}
    alone = Content(has_manifests=True, objects=found)
    assert environment_objects(asking, asking.spec.containers[0], alone) == objects
    assert environment_objects(asking, asking.spec.containers[0], Content()) is None
    assert unanswered(keys.values(), Content(True, found)) is None
    assert unanswered(keys.values(), Content(True, {keys["m"]: found[keys["m"]]})) == keys["gone"]
    assert unanswered(keys.values(), Content(has_manifests=True)) == next(iter(keys.values()))
    assert unanswered(keys.values(), Content()) is None


KINDS = (
    (ContentKind.CONFIG_MAP, "m"),
    (ContentKind.CONFIG_MAP, "gone"),
    (ContentKind.SECRET, "s"),
    (ContentKind.SECRET, "away"),
)


def test_the_handler_of_a_runtime_class() -> None:
    key = ObjectKey(ContentKind.RUNTIME_CLASS, "", "sealed")
    sealed = pod(runtimeClassName="sealed")

    def handler(found: Found) -> str:
        return runtime_handler(sealed, Content(True, {key: found}))

    assert runtime_handler(pod(), Content(True)) == ""
    unknown = refusal(runtime_handler, sealed, Content())
    assert unknown.message == "nothing knows the RuntimeClass sealed"
    by_manifest = Content(objects={key: Present(RuntimeClass(handler="kata"))}, has_manifests=True)
    assert runtime_handler(sealed, by_manifest) == "kata"
    assert handler(Present(RuntimeClass(handler="kata"))) == "kata"
    missing = refusal(handler, Absent('runtimeclass.node.k8s.io "sealed" not found'))
    assert (missing.reason, missing.message) == (
        "CreatePodSandboxError",
        'runtimeclass.node.k8s.io "sealed" not found',
    )
    away = refusal(handler, Unreadable("no", 1.0))
    assert away.message == "failed to lookup RuntimeClass sealed: no"
