"""What containerd chooses of an index on a machine."""

from __future__ import annotations

import pytest

from pykubelet_images.contents import Descriptor, PlatformSpec, UnusableImage, choose, machine_platforms

AMD64 = machine_platforms("amd64", "x86_64")


def entry(name: str) -> Descriptor:
    """An entry of an index, with its platform as a digest."""
    os, architecture, variant = [*name.split("/"), "", ""][:3]
    return Descriptor(name, 1, platform=PlatformSpec(os, architecture, variant) if name else None)


@pytest.mark.parametrize(
    ("names", "machine", "chosen"),
    [
        (["linux/arm64", "linux/amd64", "unknown/unknown"], ("amd64", "x86_64"), "linux/amd64"),
        (["linux/386", "linux/amd64"], ("amd64", "x86_64"), "linux/amd64"),
        (["linux/386", "linux/arm64"], ("amd64", "x86_64"), "linux/386"),
        (["linux/amd64/v3", "linux/amd64/v1"], ("amd64", "x86_64"), "linux/amd64/v1"),
        (["", "linux/x86_64"], ("amd64", "x86_64"), "linux/x86_64"),
        (["windows/amd64", ""], ("amd64", "x86_64"), ""),
        (["linux/arm/v7", "linux/arm64/v8"], ("arm64", "aarch64"), "linux/arm64/v8"),
        (["linux/arm/v6", "linux/arm"], ("arm64", "aarch64"), "linux/arm"),
        (["linux/arm/v7", "linux/arm/6"], ("arm", "armv6l"), "linux/arm/6"),
        (["linux/arm/v6", "linux/arm/v7"], ("arm", "armv7l"), "linux/arm/v7"),
        (["linux/s390x"], ("s390x", "s390x"), "linux/s390x"),
    ],
)
def test_the_best_platform_is_chosen(names: list[str], machine: tuple[str, str], chosen: str) -> None:
    assert choose([entry(name) for name in names], machine_platforms(*machine)).digest == chosen


def test_the_first_of_equals_is_chosen() -> None:
    entries = [Descriptor(digest, 1, platform=PlatformSpec("linux", "amd64")) for digest in ("a", "b")]
    assert choose(entries, AMD64).digest == "a"


def test_platforms_that_are_there_are_named() -> None:
    with pytest.raises(UnusableImage, match=r"^it is for linux/arm64, windows/amd64, and this machine is linux/amd64$"):
        choose([entry("windows/amd64"), entry("linux/arm64"), entry("unknown/unknown")], AMD64)
