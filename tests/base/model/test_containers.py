from act.runtime.rendering import make_container

from pykubelet.base.api import core
from pykubelet.base.model.containers import container_hash


def test_equals_the_reference_kubelet() -> None:
    """The value in the reference's own test, so that its containers are adopted unchanged."""
    container = make_container(
        name="test_container", image="foo/image:v1", args=["/bin/sh", "-c"], ports=[{"containerPort": 8001}]
    )
    assert container_hash(container) == "8e45cbd0"


def test_only_name_and_image_count() -> None:
    plain = make_container()
    assert container_hash(make_container(args=["x"], env=[{"name": "A", "value": "b"}])) == container_hash(plain)
    assert container_hash(make_container(image="busybox:2")) != container_hash(plain)
    assert container_hash(make_container(name="other")) != container_hash(plain)


def test_ephemeral_containers_have_one_too() -> None:
    ephemeral = core.EphemeralContainer(name="app", image="busybox:1")
    assert container_hash(ephemeral) == container_hash(make_container())


def test_go_escapes_html_in_json() -> None:
    """Distinct images stay distinct where the two languages spell JSON differently."""
    assert container_hash(make_container(image="a<b")) != container_hash(make_container(image="a\\u003cb"))
