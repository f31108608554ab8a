import pytest

from pykubelet.base.api.resources import page_resource, page_size, page_size_name

GIB = 1 << 30


@pytest.mark.parametrize(
    ("size", "kernel", "resource"),
    [
        (64 << 10, "64KB", "hugepages-64Ki"),
        (2 << 20, "2MB", "hugepages-2Mi"),
        (GIB, "1GB", "hugepages-1Gi"),
        (16 * GIB, "16GB", "hugepages-16Gi"),
        (1000, "1000B", "hugepages-1000"),
    ],
)
def test_names_of_page_sizes(size: int, kernel: str, resource: str) -> None:
    assert page_size_name(size) == kernel
    assert page_resource(size) == resource
    assert page_size(resource) == size


@pytest.mark.parametrize(
    "resource", ["memory", "hugepages-", "hugepages-odd", "hugepages-0", "example.com/hugepages-2Mi"]
)
def test_what_names_no_page_size(resource: str) -> None:
    assert page_size(resource) is None
