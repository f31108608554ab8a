"""The examples are manifests the agent takes, and use images that are built here."""

from __future__ import annotations

from pathlib import Path

import pytest
from testbed import images, node

from pykubelet.base.api.core import Pod
from pykubelet.base.model.content import ManifestObject
from pykubelet.desired.sources.decode import ManifestRules, decode_manifest
from pykubelet.desired.sources.static import file_origin

FOLDER = Path(node.__file__).parents[2] / "examples"
EXAMPLES = sorted((*FOLDER.glob("*.yaml"), *FOLDER.glob("health/*.yaml")))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_is_a_valid_pod_with_local_images(path: Path) -> None:
    rules = ManifestRules(node.NODE_NAME, is_standalone=True)
    *objects, pod = decode_manifest(path.read_bytes(), file_origin(str(path)), rules)
    assert isinstance(pod, Pod), pod
    assert all(isinstance(found, ManifestObject) for found in objects), objects
    assert pod.metadata.name == f"{path.stem}-{node.NODE_NAME}"
    used = [container.image for container in (*pod.spec.initContainers, *pod.spec.containers)]
    assert set(used) <= {images.BUSYBOX}
