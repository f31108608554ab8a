"""`ImagePuller.ensure` as `act/pods` and the user see it: answers and Events."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from provide.images.stand import FakeRuntime, Stand, digest, image, pod, request

from pykubelet.base.kit.clock import ManualClock
from pykubelet.base.kit.supervise import Supervisor
from pykubelet.base.kit.values import replace
from pykubelet.base.model.kube_events import normal
from pykubelet.edges.cri import cri_pb2 as pb
from pykubelet.edges.cri.errors import CriCode, CriError
from pykubelet.edges.plugins.credential_config import ProviderConfig
from pykubelet.edges.plugins.credential_provider import CacheKeyType, ProviderAnswer
from pykubelet.edges.plugins.pull_credentials import DockerConfigFile
from pykubelet.provide.images.keyring import PullSecret, SecretSource
from pykubelet.provide.images.model import ImageError, ImageReady, ImageSettings, VerificationPolicy
from pykubelet.provide.images.providers import CredentialProviders
from pykubelet.provide.images.records import file_name, identity_of, render_pulled

pytestmark = pytest.mark.virtual_time

PRIVATE = "registry.example/team/app:1"
DENIED = f"failed to authorize {PRIVATE}: 401 Unauthorized"


def stand(tmp_path: Path, runtime: FakeRuntime, clock: ManualClock | None = None, **settings: Any) -> Stand:
    node_files = settings.pop("node_files", ())
    providers = settings.pop("providers", None)
    values = {"qps": 0.0, "serialize": False, **settings}
    made = ImageSettings(str(tmp_path / "records"), **values)
    return Stand(runtime, clock or ManualClock(), made, node_files, providers)


def secret(uid: str, password: str) -> PullSecret:
    auth = base64.b64encode(f"user:{password}".encode()).decode()
    document = f'{{"auths": {{"registry.example": {{"auth": "{auth}"}}}}}}'.encode()
    return PullSecret(
        SecretSource(uid, "default", f"secret-{uid}"),
        "kubernetes.io/dockerconfigjson",
        {".dockerconfigjson": document},
    )


def node_file(password: str) -> DockerConfigFile:
    auth = base64.b64encode(f"node:{password}".encode()).decode()
    return DockerConfigFile(
        "/var/lib/kubelet/config.json", False, f'{{"auths": {{"registry.example": {{"auth": "{auth}"}}}}}}'.encode()
    )


async def test_a_present_image_costs_one_status_call(tmp_path: Path) -> None:
    under_test = stand(tmp_path, runtime := FakeRuntime(["busybox:latest"]))
    ready = await under_test.puller.ensure(request("busybox"))
    text = 'Container image "busybox" already present on machine and can be accessed by the pod'
    event = normal("Pulled", text, request("busybox").pod, "spec.containers{main}")
    assert ready == ImageReady("id-of-busybox:latest", "id-of-busybox:latest", present=event)
    assert (runtime.status_calls, runtime.pulls) == (1, [])
    assert under_test.events() == [], "it is recorded when the container starts"


async def test_an_absent_image_is_pulled_and_its_user_known(tmp_path: Path) -> None:
    under_test = stand(tmp_path, FakeRuntime())
    ready = await under_test.puller.ensure(request("busybox"))
    assert isinstance(ready, ImageReady)
    assert (ready.image_ref, ready.present) == ("id-of-busybox:latest", None)
    assert under_test.events() == [
        'Normal Pulling Pulling image "busybox"',
        'Normal Pulled Successfully pulled image "busybox" in 0s (0s including waiting). Image size: 1000 bytes.',
    ]


@pytest.mark.parametrize(
    ("uid", "username", "expected"), [(0, "", (0, "")), (1000, "x", (1000, "")), (None, "app", (None, "app"))]
)
async def test_the_images_user(
    tmp_path: Path, uid: int | None, username: str, expected: tuple[int | None, str]
) -> None:
    runtime = FakeRuntime()
    runtime.images["a:1"] = image("a:1", uid=uid, username=username)
    ready = await stand(tmp_path, runtime).puller.ensure(request("a:1"))
    assert isinstance(ready, ImageReady)
    assert (ready.uid, ready.username) == expected


async def test_always_pulls_what_is_there_without_looking_first(tmp_path: Path) -> None:
    under_test = stand(tmp_path, runtime := FakeRuntime(["a:1"]))
    assert isinstance(await under_test.puller.ensure(request("a:1", policy="Always")), ImageReady)
    assert runtime.pulls == [("a:1", "")]


async def test_never_takes_what_is_there_and_refuses_what_is_not(tmp_path: Path) -> None:
    clock = ManualClock()
    under_test = stand(tmp_path, runtime := FakeRuntime(["a:1"]), clock)
    assert isinstance(await under_test.puller.ensure(request("a:1", policy="Never")), ImageReady)
    under_test.events()
    text = 'Container image "b:1" is not present with pull policy of Never'
    assert await under_test.puller.ensure(request("b:1", policy="Never")) == ImageError(
        "ErrImageNeverPull", text, clock.monotonic() + 10
    )
    assert under_test.events() == [f"Warning ErrImageNeverPull {text}", "Warning Failed Error: ErrImageNeverPull"]
    assert runtime.pulls == []


async def test_a_bad_name_waits_for_another_name(tmp_path: Path) -> None:
    under_test = stand(tmp_path, runtime := FakeRuntime())
    text = (
        'Failed to apply default image tag "Bad Name": couldn\'t parse image name "Bad Name": '
        "invalid reference format: repository name (library/Bad Name) must be lowercase"
    )
    assert await under_test.puller.ensure(request("Bad Name")) == ImageError("InvalidImageName", text, None)
    assert under_test.events() == [f"Warning InspectFailed {text}", "Warning Failed Error: InvalidImageName"]
    assert runtime.status_calls == 0


async def test_a_runtime_that_cannot_inspect(tmp_path: Path) -> None:
    runtime = FakeRuntime()
    runtime.status_failure = CriError(CriCode.UNAVAILABLE, "gone", "ImageStatus")
    under_test = stand(tmp_path, runtime)
    found = await under_test.puller.ensure(request("a:1"))
    text = 'Failed to inspect image "a:1": rpc error: code = Unavailable desc = gone'
    assert isinstance(found, ImageError)
    assert (found.reason, found.message) == ("ImageInspectError", text)
    assert under_test.events() == [f"Warning InspectFailed {text}", "Warning Failed Error: ImageInspectError"]


async def test_failure_and_back_off_from_10_s_doubling_to_300_s(tmp_path: Path) -> None:
    clock = ManualClock()
    runtime = FakeRuntime()
    runtime.failures["a:1"] = CriError(CriCode.NOT_FOUND, "no such image", "PullImage")
    under_test = stand(tmp_path, runtime, clock)
    text = "rpc error: code = NotFound desc = no such image"
    for delay in (10, 20, 40, 80, 160, 300, 300):
        assert await under_test.puller.ensure(request("a:1")) == ImageError("ErrImagePull", text, clock.monotonic() + 1)
        assert under_test.events() == [
            'Normal Pulling Pulling image "a:1"',
            f'Warning Failed Failed to pull image "a:1": {text}',
            "Warning Failed Error: ErrImagePull",
        ]
        clock.advance(1)
        waiting = await under_test.puller.ensure(request("a:1"))
        message = f'Back-off pulling image "a:1": ErrImagePull: {text}'
        assert waiting == ImageError("ImagePullBackOff", message, clock.monotonic() + delay - 1)
        assert under_test.events() == [
            'Normal BackOff Back-off pulling image "a:1"',
            "Warning Failed Error: ImagePullBackOff",
        ]
        clock.advance(delay - 1)
    assert len(runtime.pulls) == 7


async def test_back_off_is_of_one_pod_and_one_image_and_ends_with_the_pod(tmp_path: Path) -> None:
    runtime = FakeRuntime()
    runtime.failures["a:1"] = CriError(CriCode.NOT_FOUND, "no", "PullImage")
    under_test = stand(tmp_path, runtime)
    await under_test.puller.ensure(request("a:1", "one"))
    other = await under_test.puller.ensure(request("a:1", "two"))
    assert isinstance(other, ImageError)
    assert other.reason == "ErrImagePull"
    assert isinstance(await under_test.puller.ensure(request("b:1", "one")), ImageReady)
    under_test.puller.forget(pod("one").uid)
    again = await under_test.puller.ensure(request("a:1", "one"))
    assert isinstance(again, ImageError)
    assert again.reason == "ErrImagePull"


async def test_an_image_that_appears_ends_the_back_off(tmp_path: Path) -> None:
    runtime = FakeRuntime()
    runtime.failures["a:1"] = CriError(CriCode.NOT_FOUND, "no", "PullImage")
    under_test = stand(tmp_path, runtime)
    await under_test.puller.ensure(request("a:1"))
    runtime.images["a:1"] = image("a:1")  # loaded by hand
    assert isinstance(await under_test.puller.ensure(request("a:1")), ImageReady)


async def test_a_runtime_that_was_away_is_asked_again_soon(tmp_path: Path) -> None:
    clock = ManualClock()
    runtime = FakeRuntime()
    runtime.failures["a:1"] = CriError(CriCode.UNAVAILABLE, "restarting", "PullImage")
    under_test = stand(tmp_path, runtime, clock)
    await under_test.puller.ensure(request("a:1"))
    del runtime.failures["a:1"]
    clock.advance(1)
    assert isinstance(await under_test.puller.ensure(request("a:1")), ImageReady)


@pytest.mark.parametrize("reason", ["RegistryUnavailable", "SignatureValidationFailed"])
async def test_reasons_that_the_runtime_knows(tmp_path: Path, reason: str) -> None:
    runtime = FakeRuntime()
    runtime.failures["a:1"] = CriError(CriCode.UNKNOWN, f"{reason}: details", "PullImage")
    found = await stand(tmp_path, runtime).puller.ensure(request("a:1"))
    assert isinstance(found, ImageError)
    assert found.reason == reason
    assert found.message.endswith(": details")


async def test_five_pods_one_pull_each_has_its_own_timeline(tmp_path: Path) -> None:
    under_test = stand(tmp_path, runtime := FakeRuntime())
    runtime.seconds = 0.05
    answers = await asyncio.gather(*(under_test.puller.ensure(request("a:1", f"pod-{n}")) for n in range(5)))
    assert all(isinstance(answer, ImageReady) for answer in answers)
    assert runtime.pulls == [("a:1", "")]
    pulled = [event.pod.name for event in under_test.sink.events if event.pod and event.reason == "Pulled"]
    assert sorted(pulled) == [f"pod-{n}" for n in range(5)]


async def test_the_nodes_password_opens_the_image_for_all_pods(tmp_path: Path) -> None:
    runtime = FakeRuntime()
    runtime.passwords[PRIVATE] = "right"
    under_test = stand(tmp_path, runtime, node_files=(node_file("right"),))
    assert isinstance(await under_test.puller.ensure(request(PRIVATE, "one")), ImageReady)
    assert isinstance(await under_test.puller.ensure(request(PRIVATE, "two")), ImageReady)
    assert runtime.pulls == [(PRIVATE, "node")]


async def test_wrong_password(tmp_path: Path) -> None:
    runtime = FakeRuntime()
    runtime.passwords[PRIVATE] = "right"
    under_test = stand(tmp_path, runtime, node_files=(node_file("wrong"),))
    found = await under_test.puller.ensure(request(PRIVATE))
    assert isinstance(found, ImageError)
    assert (found.reason, found.message) == ("ErrImagePull", DENIED)


async def test_secrets_come_first_then_the_node_then_plugins(tmp_path: Path) -> None:
    async def plugin(
        config: ProviderConfig, image: str, token: str = "", annotations: Mapping[str, str] | None = None
    ) -> ProviderAnswer:
        return ProviderAnswer(CacheKeyType.REGISTRY, {"registry.example": ("plugin", "right")}, 60.0)

    clock = ManualClock()
    configs = (ProviderConfig("p", "/p", ("registry.example",), 0.0, "v1"),)
    runtime = FakeRuntime()
    runtime.passwords[PRIVATE] = "right"
    under_test = stand(
        tmp_path,
        runtime,
        clock,
        node_files=(node_file("wrong"),),
        providers=CredentialProviders(configs, plugin, clock),
    )
    async with under_test.puller:
        ready = await under_test.puller.ensure(request(PRIVATE, secrets=(secret("1", "wrong"),)))
    assert isinstance(ready, ImageReady)
    assert [user for _, user in runtime.pulls] == ["user", "node", "plugin"]


@pytest.mark.parametrize("answers_digest", [False, True])
async def test_a_private_image_is_not_shared_with_pods_that_have_no_secret(
    tmp_path: Path, answers_digest: bool
) -> None:
    runtime = FakeRuntime(answers_digest=answers_digest)
    runtime.passwords[PRIVATE] = "right"
    under_test = stand(tmp_path, runtime)
    assert isinstance(
        await under_test.puller.ensure(request(PRIVATE, "owner", secrets=(secret("1", "right"),))), ImageReady
    )
    other_pod = await under_test.puller.ensure(request(PRIVATE, "other"))
    assert isinstance(other_pod, ImageError)
    assert other_pod.reason == "ErrImagePull"
    refused = await under_test.puller.ensure(request(PRIVATE, "never", policy="Never"))
    assert isinstance(refused, ImageError)
    assert refused.reason == "ErrImageNeverPull"
    by_digest = await under_test.puller.ensure(request(digest(PRIVATE), "digest", policy="Never"))
    assert isinstance(by_digest, ImageError)
    pulls = len(runtime.pulls)
    for again in (secret("1", "right"), secret("2", "right"), secret("2", "rotated")):
        assert isinstance(await under_test.puller.ensure(request(PRIVATE, "owner", secrets=(again,))), ImageReady)
    assert len(runtime.pulls) == pulls


@pytest.mark.parametrize("answers_digest", [False, True])
async def test_what_was_proven_is_known_after_a_restart(tmp_path: Path, answers_digest: bool) -> None:
    runtime = FakeRuntime(answers_digest=answers_digest)
    runtime.passwords[PRIVATE] = "right"
    await stand(tmp_path, runtime).puller.ensure(request(PRIVATE, secrets=(secret("1", "right"),)))
    after = stand(tmp_path, runtime)
    other_pod = await after.puller.ensure(request(PRIVATE, "other"))
    owner = await after.puller.ensure(request(PRIVATE, "owner", secrets=(secret("1", "right"),)))
    assert isinstance(other_pod, ImageError)
    assert isinstance(owner, ImageReady)
    assert [user for _, user in runtime.pulls] == ["user", ""]


async def test_pods_that_share_a_pull_with_equal_secrets_are_all_let_in_later(tmp_path: Path) -> None:
    runtime = FakeRuntime()
    runtime.seconds = 0.05
    runtime.passwords[PRIVATE] = "right"
    under_test = stand(tmp_path, runtime)
    same = PullSecret(SecretSource("other", "default", "copy"), secret("1", "right").type, secret("1", "right").data)
    await asyncio.gather(
        under_test.puller.ensure(request(PRIVATE, "one", secrets=(secret("1", "right"),))),
        under_test.puller.ensure(request(PRIVATE, "two", secrets=(same,))),
    )
    record = under_test.records.record(identity_of(runtime.images[PRIVATE]))
    assert record is not None
    assert {known.uid for known in record.access["registry.example/team/app"].secrets} == {"1", "other"}
    assert len(runtime.pulls) == 1


async def test_always_verify_pulls_a_preloaded_image_once(tmp_path: Path) -> None:
    under_test = stand(tmp_path, runtime := FakeRuntime(["a:1"]), verification=VerificationPolicy.ALWAYS_VERIFY)
    await under_test.puller.ensure(request("a:1"))
    await under_test.puller.ensure(request("a:1"))
    assert runtime.pulls == [("a:1", "")]


async def test_an_abandoned_pull_does_not_make_its_image_preloaded(tmp_path: Path) -> None:
    runtime = FakeRuntime()
    runtime.seconds = 30
    runtime.passwords[PRIVATE] = "right"
    under_test = stand(tmp_path, runtime)
    tasks = Supervisor("test")
    task = tasks.start_child("pull", under_test.puller.ensure(request(PRIVATE, secrets=(secret("1", "right"),))))
    await runtime.pull_begun.wait()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    runtime.images[PRIVATE] = image(PRIVATE)  # the runtime had just finished it
    runtime.seconds = 0
    other_pod = await under_test.puller.ensure(request(PRIVATE, "other"))
    assert isinstance(other_pod, ImageError)


@pytest.mark.parametrize("answers_digest", [False, True])
async def test_a_pulled_image_that_cannot_be_read_gives_no_access_yet(tmp_path: Path, answers_digest: bool) -> None:
    class Unreadable(FakeRuntime):
        async def image_status(self, image: pb.ImageSpec) -> pb.Image | None:
            if self.pulls and len(self.pulls) == 1:
                raise CriError(CriCode.UNKNOWN, "the store is locked", "ImageStatus")
            return await super().image_status(image)

    runtime = Unreadable(answers_digest=answers_digest)
    runtime.passwords[PRIVATE] = "right"
    under_test = stand(tmp_path, runtime)
    owner = request(PRIVATE, "owner", secrets=(secret("1", "right"),))
    failed = await under_test.puller.ensure(owner)
    assert isinstance(failed, ImageError)
    assert failed.reason == "ImageInspectError"
    runtime.pulls.append(("", ""))  # from here on, the runtime answers
    for name in (PRIVATE, digest(PRIVATE)):
        refused = await under_test.puller.ensure(request(name, f"other {name}", policy="Never"))
        assert isinstance(refused, ImageError), name
    assert isinstance(await under_test.puller.ensure(owner), ImageReady)
    assert isinstance(await under_test.puller.ensure(request(PRIVATE, "other", policy="Never")), ImageError)


@pytest.mark.parametrize("answers_digest", [False, True])
async def test_access_is_recorded_for_the_image_that_was_pulled_not_for_the_next_of_its_name(
    tmp_path: Path, answers_digest: bool
) -> None:
    class Moving(FakeRuntime):
        """While the answer to the first pull is under way, the tag is given to another image."""

        async def pull_image(
            self, spec: pb.ImageSpec, auth: pb.AuthConfig | None, sandbox_config: pb.PodSandboxConfig | None = None
        ) -> str:
            answer = await super().pull_image(spec, auth, sandbox_config)
            if len(self.pulls) == 1:
                self.images["old"] = self.images[PRIVATE]
                self.images[PRIVATE] = image("registry.example/team/app:2")
            return answer

    runtime = Moving(answers_digest=answers_digest)
    runtime.passwords[PRIVATE] = "right"
    under_test = stand(tmp_path, runtime)
    ready = await under_test.puller.ensure(request(PRIVATE, "owner", secrets=(secret("1", "right"),)))
    assert isinstance(ready, ImageReady)
    assert ready.image_id == f"id-of-{PRIVATE}"
    assert under_test.records.record(identity_of(runtime.images["old"])) is not None
    assert under_test.records.record(identity_of(runtime.images[PRIVATE])) is None


@pytest.mark.parametrize("image_ref", [f"id-of-{PRIVATE}", digest(PRIVATE)])
async def test_a_record_of_another_kubelet_is_honored(tmp_path: Path, image_ref: str) -> None:
    runtime = FakeRuntime([PRIVATE])
    right = secret("1", "right")
    first = stand(tmp_path / "first", runtime)
    await first.puller.ensure(request(PRIVATE, policy="Always", secrets=(right,)))
    written = first.records.record(identity_of(runtime.images[PRIVATE]))
    assert written is not None
    pulled = tmp_path / "records" / "pulled"
    pulled.mkdir(parents=True)
    (pulled / file_name(image_ref)).write_bytes(render_pulled(replace(written, image_ref=image_ref)))
    under_test = stand(tmp_path, runtime)
    other_pod = await under_test.puller.ensure(request(PRIVATE, "other", policy="Never"))
    owner = await under_test.puller.ensure(request(PRIVATE, "owner", policy="Never", secrets=(right,)))
    assert isinstance(other_pod, ImageError)
    assert isinstance(owner, ImageReady)


async def test_a_bad_pull_secret_is_reported(tmp_path: Path) -> None:
    bad = PullSecret(SecretSource("1", "default", "bad"), "kubernetes.io/dockerconfigjson", {".dockerconfigjson": b"x"})
    found = await stand(tmp_path, FakeRuntime()).puller.ensure(request("a:1", secrets=(bad,)))
    assert isinstance(found, ImageError)
    assert found.reason == "ErrImagePull"
    assert found.message.startswith("image pull secret default/bad: ")


async def test_an_image_that_is_gone_right_after_its_pull(tmp_path: Path) -> None:
    class Vanishing(FakeRuntime):
        async def image_status(self, image: object) -> None:
            return None

    found = await stand(tmp_path, Vanishing()).puller.ensure(request("a:1"))
    assert isinstance(found, ImageError)
    assert found.reason == "ImageInspectError"
