"""The URL source with answers from a script, and once with a real server."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
import yaml
from aiohttp import web

from pykubelet.base.kit.cells import Sink
from pykubelet.base.kit.clock import ManualClock
from pykubelet.base.model.roster import SourceChanged
from pykubelet.desired.sources.decode import ManifestRules
from pykubelet.desired.sources.url import UrlSource
from pykubelet.edges.host.services.httpget import HttpAnswer, HttpError

PLACE = "http://me:secret@example.com/pods"


def pod(name: str) -> dict[str, object]:
    spec = {"containers": [{"name": "c", "image": "x:1"}]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}


def body(*names: str) -> bytes:
    listed = {"apiVersion": "v1", "kind": "PodList", "items": [pod(name) for name in names]}
    return yaml.safe_dump(listed).encode()


class Script:
    """Gives the next answer each time it is asked."""

    def __init__(self, *answers: bytes | int | HttpError) -> None:
        self.answers = list(answers)
        self.asked: list[tuple[str, object, float]] = []

    async def __call__(
        self, url: str, headers: Mapping[str, tuple[str, ...]] | None, timeout_s: float, limit: int
    ) -> HttpAnswer:
        self.asked.append((url, headers, timeout_s))
        match self.answers.pop(0):
            case HttpError() as error:
                raise error
            case int(status):
                return HttpAnswer(status, "Nope", b"")
            case content:
                return HttpAnswer(200, "OK", content)


def source(script: Script, posts: Sink[SourceChanged]) -> UrlSource:
    return UrlSource(PLACE, {"X-A": ("1", "2")}, ManifestRules("n"), 20.0, posts, ManualClock(), script)


async def shown(*answers: bytes | int | HttpError) -> list[tuple[list[str], list[tuple[str, str]]]]:
    """What was posted for these answers: names of pods, problems."""
    posts: Sink[SourceChanged] = Sink()
    script = Script(*answers)
    asking = source(script, posts)
    for _ in answers:
        await asking.ask()
    assert script.asked[0] == (PLACE, {"X-A": ("1", "2")}, 10.0)
    assert all(post.source == "http" for post in posts.events)
    return [
        ([item.metadata.name for item in post.pods], [(wrong.field_path, wrong.reason) for wrong in post.problems])
        for post in posts.events
    ]


async def test_pod_list_then_pod_then_nothing() -> None:
    single = yaml.safe_dump(pod("c")).encode()
    assert await shown(body("a", "b"), single, b"") == [(["a-n", "b-n"], []), (["c-n"], []), ([], [])]


async def test_the_same_bytes_change_nothing() -> None:
    assert await shown(body("a"), body("a"), body("a")) == [(["a-n"], [])]


async def test_errors_keep_the_set_and_are_posted_once() -> None:
    gone = HttpError(f"{PLACE}: no answer within 10 s")
    reported = ("", "http://example.com/pods: no answer within 10 s")
    assert await shown(body("a"), 500, 500, gone, body("a")) == [
        (["a-n"], []),
        (["a-n"], [("", "the answer is 500 Nope")]),
        (["a-n"], [reported]),
        (["a-n"], []),
    ]


async def test_a_bad_body_keeps_the_set() -> None:
    wrong = ("kind", 'expected "Pod" or "PodList", got "Job"')
    assert await shown(body("a"), b"kind: Job", b"kind: Job", body("b")) == [
        (["a-n"], []),
        (["a-n"], [wrong]),
        (["b-n"], []),
    ]


async def test_before_the_first_good_answer_only_problems_are_posted() -> None:
    posts: Sink[SourceChanged] = Sink()
    asking = source(Script(404, 404, b"kind: Job", body("a"), 404), posts)
    for _ in range(5):
        await asking.ask()
    reported = [(post.known, len(post.pods), [wrong.reason for wrong in post.problems]) for post in posts.events]
    assert reported == [
        (False, 0, ["the answer is 404 Nope"]),
        (False, 0, ['expected "Pod" or "PodList", got "Job"']),
        (True, 1, []),
        (True, 1, ["the answer is 404 Nope"]),
    ]


async def test_remarks_are_posted_with_the_pods_they_are_about_and_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A typo, again after an answer that is none, another typo in a body that cannot be used, and none."""
    posts: Sink[SourceChanged] = Sink()
    typo = yaml.safe_dump({**pod("a"), "spex": {}}).encode()
    script = Script(typo, 500, typo, b"kind: Job\nkind: Job", body("a"))
    asking = source(script, posts)
    with caplog.at_level("WARNING", "pykubelet.sources"):
        for _ in range(5):
            await asking.ask()
    found = [
        (len(post.pods), bool(post.problems), [remark.field_path for remark in post.remarks]) for post in posts.events
    ]
    assert found == [
        (1, False, ["spex"]),
        (1, True, ["spex"]),
        (1, False, ["spex"]),
        (1, True, ["kind"]),
        (1, False, []),
    ]
    assert posts.events[0].remarks[0].uid == next(iter(posts.events[0].pods)).metadata.uid
    assert [record.message for record in caplog.records].count("remark about a manifest") == 2


async def test_an_answer_that_is_refused_keeps_the_set_and_is_read_later() -> None:
    refusals = ["in quarantine: x", "in quarantine: x", ""]
    asked: list[tuple[str, bytes]] = []

    def refused(shown: str, data: bytes) -> str:
        asked.append((shown, data))
        return refusals.pop(0)

    posts: Sink[SourceChanged] = Sink()
    rules = ManifestRules("n", refused=refused)
    script = Script(body("a"), body("a"), body("a"))
    asking = UrlSource(PLACE, {}, rules, 20.0, posts, ManualClock(), script)
    for _ in range(3):
        await asking.ask()
    first, second = posts.events
    assert (first.known, [wrong.reason for wrong in first.problems]) == (False, ["in quarantine: x"])
    assert (second.known, [item.metadata.name for item in second.pods]) == (True, ["a-n"])
    assert asked[0] == ("http://example.com/pods", body("a")), "without user and password"


async def test_an_empty_answer_makes_it_ready() -> None:
    assert await shown(b"") == [([], [])]


async def test_first_seen_stays_and_uid_is_of_the_url() -> None:
    posts: Sink[SourceChanged] = Sink()
    clock = ManualClock()
    asking = UrlSource(PLACE, {}, ManifestRules("n"), 20.0, posts, clock, Script(body("a"), body("a", "b")))
    await asking.ask()
    clock.advance(20)
    await asking.ask()
    before, after = next(iter(posts.events[0].pods)), next(iter(posts.events[1].pods))
    assert after is before
    seen = [item.metadata.annotations["kubernetes.io/config.seen"] for item in posts.events[1].pods]
    assert seen == ["2023-11-14T22:13:20Z", "2023-11-14T22:13:40Z"]


async def test_real_request() -> None:
    async def answer(request: web.Request) -> web.Response:
        assert request.headers.getall("X-A") == ["1", "2"]
        return web.Response(body=body("a"))

    app = web.Application()
    app.router.add_get("/pods", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        port = runner.addresses[0][1]
        posts: Sink[SourceChanged] = Sink()
        asking = UrlSource(
            f"http://127.0.0.1:{port}/pods", {"X-A": ("1", "2")}, ManifestRules("n"), 20.0, posts, ManualClock()
        )
        await asking.ask()
        assert [item.metadata.name for item in posts.events[0].pods] == ["a-n"]
    finally:
        await runner.cleanup()


async def test_without_an_api_server_the_good_documents_of_an_answer_count() -> None:
    other = yaml.safe_dump({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "s"}})
    mixed = f"{other}---\n{yaml.safe_dump(pod('a'))}".encode()
    posts: Sink[SourceChanged] = Sink()
    script = Script(mixed, 503, mixed, other.encode(), mixed)
    rules = ManifestRules("n", is_standalone=True)
    asking = UrlSource(PLACE, {"X-A": ("1", "2")}, rules, 20.0, posts, ManualClock(), script)
    for _ in range(5):
        await asking.ask()
    found = [([item.metadata.name for item in post.pods], [p.document for p in post.problems]) for post in posts.events]
    service = ["document 1, Service s"]
    assert found == [(["a-n"], service), (["a-n"], [""]), (["a-n"], service), (["a-n"], [""]), (["a-n"], service)]
