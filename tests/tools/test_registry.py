"""The local registry serves our images to the real runtime: plain, behind TLS, with a password, slowly."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from testbed import containerd, images, registry
from testbed.private_runtime import Testbed

from pykubelet.edges.cri import cri_pb2 as pb
from pykubelet.edges.cri.client import CriClient
from pykubelet.edges.cri.errors import CriError

pytestmark = pytest.mark.integration


async def pull(testbed: Testbed, image: str, auth: pb.AuthConfig | None = None) -> str:
    client = CriClient(testbed.endpoint)
    try:
        reference = await client.pull_image(pb.ImageSpec(image=image), auth)
        await client.remove_image(pb.ImageSpec(image=image))
        return reference
    finally:
        await client.close()


async def test_a_plain_registry_serves_tags_and_digests(testbed: Testbed, tmp_path: Path) -> None:
    archive = images.build(images.DEFAULTS, tmp_path)
    with registry.serving(tmp_path / "registry") as served:
        by_digest = registry.push(served, archive, "team/app:1")
        containerd.trust_registry(testbed, served.address, served.url)
        assert await pull(testbed, f"{served.address}/team/app:1") == await pull(testbed, by_digest)


async def test_a_registry_with_tls_and_password_refuses_others(testbed: Testbed, tmp_path: Path) -> None:
    archive = images.build(images.DEFAULTS, tmp_path)
    with registry.serving(tmp_path / "registry", login=("ann", "secret"), tls=True) as served:
        registry.push(served, archive, "app:1")
        containerd.trust_registry(testbed, served.address, served.url, served.ca_file)
        with pytest.raises(CriError, match=r"401 Unauthorized|authorization failed"):
            await pull(testbed, f"{served.address}/app:1")
        with pytest.raises(CriError, match=r"401 Unauthorized|authorization failed"):
            await pull(testbed, f"{served.address}/app:1", pb.AuthConfig(username="ann", password="wrong"))
        auth = pb.AuthConfig(username="ann", password="secret")
        assert (await pull(testbed, f"{served.address}/app:1", auth)).startswith("sha256:")


async def test_a_slow_registry_takes_its_time(testbed: Testbed, tmp_path: Path) -> None:
    archive = images.build(images.DEFAULTS, tmp_path)
    with registry.serving(tmp_path / "registry") as served, registry.slowed(served, 0.5) as slow:
        registry.push(served, archive, "app:1")
        containerd.trust_registry(testbed, slow, f"http://{slow}")
        began = time.monotonic()
        await pull(testbed, f"{slow}/app:1")
        assert time.monotonic() - began >= 0.5
