import os
from pathlib import Path
from typing import Any

from pykubelet.extension import Image
from pykubelet.extension.testing import load, make_image

MB = 1_000_000
LAB = Path(__file__).with_name(os.environ.get("LAB", "exercise.py"))


def order(*images: Image, **settings: Any) -> list[str]:
    return [image.names[0] for image in load(LAB, settings).ask("rank_images_for_removal", images)]


def test_of_two_alike_the_longest_unused_goes_first() -> None:
    assert order(make_image("new", 100 * MB, last_used=900), make_image("old", 100 * MB, last_used=100)) == [
        "old",
        "new",
    ]


def test_what_gains_more_for_its_cost_goes_first() -> None:
    # both unused for as long: a byte of the large one is cheaper to pull again, because the latency is shared by more bytes
    assert order(make_image("small", 1 * MB, last_used=100), make_image("large", 900 * MB, last_used=100)) == [
        "large",
        "small",
    ]


def test_a_large_image_that_was_just_used_is_worth_more_than_a_small_old_one() -> None:
    assert order(make_image("model", 900 * MB, last_used=10_000), make_image("tool", 1 * MB, last_used=10)) == [
        "tool",
        "model",
    ]


def test_the_speed_of_the_registry_counts() -> None:
    # with hardly any latency, a byte costs the same in all images, so only the age counts
    images = make_image("small", 1 * MB, last_used=100), make_image("large", 900 * MB, last_used=200)
    assert order(*images, latency_s=0.0) == ["small", "large"]
    assert order(*images, latency_s=60.0) == ["large", "small"]


def test_an_image_that_was_never_used_counts_from_when_it_was_seen() -> None:
    images = make_image("seen", 100 * MB, first_seen=500.0), make_image("used", 100 * MB, last_used=100)
    assert order(*images) == ["used", "seen"]


def test_kept_names_go_last() -> None:
    images = (
        make_image("registry.example/base/os", 900 * MB, last_used=1),
        make_image("registry.example/app", 1 * MB, last_used=999),
    )
    assert order(*images, keep=["registry.example/base/"]) == ["registry.example/app", "registry.example/base/os"]


def test_no_images() -> None:
    assert order() == []
