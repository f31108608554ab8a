"""/flagz and /statusz, as people and programs ask for them."""

from __future__ import annotations

import json

import pytest
import yaml

from pykubelet.base.kit.clock import ManualClock
from pykubelet.net.http.server import Request, Response
from pykubelet.serve.endpoints.zpages import KubeletInfo, ZPages

BETA = "application/json;v=v1beta1;g=config.k8s.io;as={}"
INFO = KubeletInfo(
    {"root-dir": "/var/lib/kubelet", "cert-dir": "/pki"}, "v1.37.0", "1.36", 1_800_000_000.0, ("/flagz", "/statusz")
)


async def ask(page: str, accept: str | None) -> Response:
    pages = ZPages(INFO, ManualClock(wall=INFO.started_at + 3723))
    headers = {"accept": accept} if accept is not None else {}
    answer = await getattr(pages, page)(Request("GET", f"/{page}", headers=headers))
    assert isinstance(answer, Response)
    return answer


@pytest.mark.parametrize("accept", [None, "", "*/*", "text/plain", "application/json, text/plain;q=0.5"])
async def test_people_get_text(accept: str | None) -> None:
    flags, status = await ask("flagz", accept), await ask("statusz", accept)
    assert flags.content_type == status.content_type == "text/plain; charset=utf-8"
    assert flags.body.decode().endswith("\n\ncert-dir=/pki\nroot-dir=/var/lib/kubelet\n")
    assert "\nUp: 1 hr 02 min 03 sec\n" in status.body.decode()


async def test_programs_get_what_they_name() -> None:
    flags = json.loads((await ask("flagz", BETA.format("Flagz"))).body)
    assert flags == {
        "kind": "Flagz",
        "apiVersion": "config.k8s.io/v1beta1",
        "metadata": {"name": "kubelet"},
        "flags": {"cert-dir": "/pki", "root-dir": "/var/lib/kubelet"},
    }
    answer = await ask("statusz", BETA.format("Statusz").replace("json", "yaml"))
    assert (answer.content_type, "Warning" in answer.headers) == ("application/yaml", False)
    status = yaml.safe_load(answer.body)
    assert (status["kind"], status["uptimeSeconds"], status["binaryVersion"]) == ("Statusz", 3723, "1.37.0")
    assert status["emulationVersion"] == "1.36"
    assert status["paths"] == ["/flagz", "/statusz"]


async def test_who_names_an_old_version_gets_it_with_a_warning() -> None:
    answer = await ask("statusz", BETA.format("Statusz").replace("v1beta1", "v1alpha1"))
    assert json.loads(answer.body)["apiVersion"] == "config.k8s.io/v1alpha1"
    assert answer.headers["Warning"].startswith('299 - "config.k8s.io/v1alpha1 Statusz is deprecated')


@pytest.mark.parametrize("accept", ["application/json", BETA.format("Statusz"), "image/png", "text/plain;q=0"])
async def test_what_there_is_not_is_not_acceptable(accept: str) -> None:
    assert (await ask("flagz", accept)).status == 406
