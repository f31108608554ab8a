"""The data for the page: little of every pod, and all of the one that is opened."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.resources import files
from urllib.parse import urlencode

from report.samples import UID
from serve.world import NOW, World, make_world

from pykubelet.base.api.codec import decode
from pykubelet.base.kit.cells import Mailbox, make_cell
from pykubelet.base.model.ids import PodRef
from pykubelet.base.model.usage import CpuUse, GroupUse, MemoryUse, NodeUse, PodUse, Usage
from pykubelet.edges.cri import cri_pb2 as pb
from pykubelet.net.http.server import Request, Response
from pykubelet.serve.page.history import History
from pykubelet.serve.page.serve import NodePage

FIGURES = {"at", "cpu", "memory", "received", "sent", "disk"}


class Images:
    async def list_images(self) -> Sequence[pb.Image]:
        return (pb.Image(id="sha256:1", repo_tags=["busybox:1"], size=5),)


def make_page(world: World) -> NodePage:
    group = GroupUse(at=NOW, cpu=CpuUse(), memory=MemoryUse(working_set=7), nano_cores=3)
    node, pod = NodeUse(group, 1 << 30, 0.0), PodUse(PodRef("default", "web", UID), "/web", 0.0, group)
    usage = make_cell("usage", Usage(1.0, node, {UID: pod}))[0]
    history = History(usage, Mailbox("wanted"), world.clock)
    history.add(1.0, node, [pod])
    return NodePage(world.inputs, usage, history, Images(), world.clock, "v1")


async def get(page: NodePage, path: str, **query: str) -> Response:
    request = Request("GET", f"/page/{path}", urlencode(query))
    answer = await page.ask(request)
    assert isinstance(answer, Response)
    return answer


async def test_the_list_has_the_newest_figures_and_a_pod_has_them_over_time() -> None:
    page = make_page(make_world())
    data = decode(dict, (await get(page, "data")).body)
    uses = {pod["uid"]: pod["use"] for pod in data["pods"]}
    assert uses[UID]["cpu"] == 3 and uses[UID]["memory"] == 7 and uses["late-1"] is None
    assert data["images"] == [{"name": "busybox:1", "size": 5}]
    assert set(data["usage"]) == FIGURES and data["problems"]
    pod = decode(dict, (await get(page, "pod", uid=UID)).body)
    assert pod["usage"]["memory"] == [7] and set(pod["usage"]) == FIGURES
    assert pod["volumes"] == [] and {"cpu", "memory"} <= set(pod["containers"][0])
    assert (await get(page, "pod", uid="missing")).status == 404


def test_the_page_is_light() -> None:
    folder = files("pykubelet.serve.page")
    sizes = [
        len(file.read_bytes()) for file in folder.iterdir() if file.name.endswith((".js", ".css", ".html", ".svg"))
    ]
    assert sum(sizes) < 40_000
