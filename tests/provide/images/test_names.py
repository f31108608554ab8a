from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.cost import PAUSE_S, is_quick

from pykubelet.provide.images.names import (
    ImageName,
    InvalidImage,
    complete_name,
    credential_key,
    is_default_registry,
    key_parts,
    matches_key,
    parse_image,
    registry_of,
    sort_keys,
    with_default_tag,
)

SHA = "sha256:" + "a" * 64


@pytest.mark.parametrize(
    ("text", "repository", "tag", "digest"),
    [
        ("busybox", "docker.io/library/busybox", "", ""),
        ("busybox:1.36", "docker.io/library/busybox", "1.36", ""),
        ("library/busybox", "docker.io/library/busybox", "", ""),
        ("someone/app", "docker.io/someone/app", "", ""),
        ("docker.io/busybox", "docker.io/library/busybox", "", ""),
        ("index.docker.io/busybox", "docker.io/library/busybox", "", ""),
        ("localhost/app:1", "localhost/app", "1", ""),
        ("localhost:5000/app", "localhost:5000/app", "", ""),
        ("registry.k8s.io/pause:3.10", "registry.k8s.io/pause", "3.10", ""),
        ("[::1]:5000/a/b:x", "[::1]:5000/a/b", "x", ""),
        ("Host/app", "Host/app", "", ""),
        (f"quay.io/a/b@{SHA}", "quay.io/a/b", "", SHA),
        (f"quay.io/a/b:v1@{SHA}", "quay.io/a/b", "v1", SHA),
        ("a/b__c/d--e.f:T_a-g.1", "docker.io/a/b__c/d--e.f", "T_a-g.1", ""),
    ],
)
def test_references_are_completed(text: str, repository: str, tag: str, digest: str) -> None:
    assert parse_image(text) == ImageName(repository, tag, digest)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "invalid reference format"),
        (" busybox", "invalid reference format"),
        ("busybox\n", "invalid reference format"),
        ("busybox:", "invalid reference format"),
        ("busybox:a b", "invalid reference format"),
        ("a//b", "invalid reference format"),
        ("busybox@sha256:12", "invalid reference format"),
        ("Busybox", "invalid reference format: repository name (library/Busybox) must be lowercase"),
        ("quay.io/A/b", "invalid reference format: repository name (A/b) must be lowercase"),
        ("a" * 64, f"invalid repository name ({'a' * 64}), cannot specify 64-byte hexadecimal strings"),
        ("quay.io/" + "a" * 256, "repository name must not be more than 255 characters"),
        ("busybox@sha1:" + "a" * 40, "unsupported digest algorithm"),
        ("busybox@sha256:" + "a" * 63, "invalid checksum digest length"),
        ("busybox@sha256:" + "A" * 64, "invalid checksum digest format"),
    ],
)
def test_what_is_no_reference_has_a_reason(text: str, why: str) -> None:
    with pytest.raises(InvalidImage) as caught:
        with_default_tag(text)
    assert str(caught.value) == f'couldn\'t parse image name "{text}": {why}'


def test_the_default_tag_leaves_the_rest_as_it_was_given() -> None:
    assert with_default_tag("busybox") == "busybox:latest"
    assert with_default_tag("localhost:5000/app") == "localhost:5000/app:latest"
    assert with_default_tag("busybox:1") == "busybox:1"
    assert with_default_tag(f"busybox@{SHA}") == f"busybox@{SHA}"


def test_complete_names_are_those_that_runtimes_list() -> None:
    assert complete_name("busybox") == "docker.io/library/busybox:latest"
    assert complete_name(f"quay.io/a/b:v1@{SHA}") == f"quay.io/a/b@{SHA}"
    assert complete_name("No Name") == "No Name"


@given(st.text(max_size=60))
def test_any_text_is_parsed_or_refused(text: str) -> None:
    try:
        name = parse_image(text)
    except InvalidImage:
        return
    again = parse_image(complete_name(text))
    assert again.repository == name.repository


@pytest.mark.parametrize(
    ("location", "key"),
    [
        ("https://index.docker.io/v1/", "index.docker.io"),
        ("http://foo.example/v2/team", "foo.example/team"),
        ("foo.example", "foo.example"),
        ("foo.example/", "foo.example"),
        ("foo.example:5000/a/b", "foo.example:5000/a/b"),
        ("https://user@foo.example/a?x=1#y", "foo.example/a"),
        ("*.foo.example", "*.foo.example"),
        ("foo example", None),
        ("foo.example:port", None),
    ],
)
def test_locations_become_keys(location: str, key: str | None) -> None:
    assert credential_key(location) == key


@pytest.mark.parametrize(
    ("key", "repository", "fits"),
    [
        ("quay.io", "quay.io/a/b", True),
        ("quay.io/a", "quay.io/a/b", True),
        ("quay.io/a", "quay.io/another/b", True),
        ("quay.io/c", "quay.io/a/b", False),
        ("*.kubernetes.io", "abc.kubernetes.io/x", True),
        ("*.kubernetes.io", "kubernetes.io/x", False),
        ("*.kubernetes.io", "prefix.x.kubernetes.io/x", False),
        ("*.*.kubernetes.io", "prefix.x.kubernetes.io/x", True),
        ("prefix.*.io", "prefix.kubernetes.io/x", True),
        ("*-good.kubernetes.io", "prefix-good.kubernetes.io/x", True),
        ("k8s.[a-c]?", "k8s.bx/x", True),
        ("k8s.[^a-c]?", "k8s.bx/x", False),
        ("k8s.[", "k8s.[/x", False),
        ("foo.example:5000", "foo.example:5000/x", True),
        ("foo.example:5000", "foo.example/x", False),
        ("foo.example", "foo.example:5000/x", False),
        ("[::1]:5000", "[::1]:5000/x", True),
    ],
)
def test_keys_match_host_by_label_port_exactly_and_path_by_prefix(key: str, repository: str, fits: bool) -> None:
    assert matches_key(key_parts(key), key_parts(repository)) is fits


def test_no_key_takes_long_to_match() -> None:
    def match() -> None:
        for stars in (8, 12, 100):
            assert not matches_key(key_parts("*a" * stars + "b.invalid"), key_parts("a" * 200 + ".invalid/x"))
            assert matches_key(key_parts("*a" * stars + "*.invalid"), key_parts("a" * 200 + ".invalid/x"))

    assert is_quick(match, PAUSE_S)


def test_a_reference_that_is_too_long_is_refused_with_a_short_message() -> None:
    with pytest.raises(InvalidImage, match=r"it has more than 1024 characters") as caught:
        parse_image("a" * 1_400_000)
    assert len(str(caught.value)) < 1200


def test_longer_paths_are_tried_first() -> None:
    keys = {"quay.io", "quay.io/coreos", "gcr.io", "*.gcr.io"}
    assert sort_keys(keys) == ["quay.io/coreos", "quay.io", "gcr.io", "*.gcr.io"]


def test_docker_hub_serves_unqualified_images() -> None:
    assert is_default_registry("docker.io/library/busybox")
    assert is_default_registry("busybox")
    assert is_default_registry("someone/app")
    assert not is_default_registry("quay.io/a")
    assert not is_default_registry("localhost:5000/a")
    assert not is_default_registry("")
    assert registry_of("localhost:5000/a/b") == "localhost:5000"
