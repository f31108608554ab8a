"""Which file has the DNS configuration of a sandbox."""

from __future__ import annotations

import pytest

from pykubelet_cri_docker.engine import messages as docker
from pykubelet_cri_docker.sandboxes import resolv_conf_of


@pytest.mark.parametrize(
    ("engines", "hostname", "path"),
    [
        ("/d/s1/resolv.conf", "/d/s1/hostname", "/d/s1/resolv.conf"),
        ("", "/p/s1/hostname", "/p/s1/resolv.conf"),
        ("", "", ""),
    ],
)
def test_a_sandbox_has_one_also_where_the_engine_makes_none(engines: str, hostname: str, path: str) -> None:
    found = docker.DockerContainer("s1", resolv_conf_path=engines, hostname_path=hostname)
    assert resolv_conf_of(found) == path
