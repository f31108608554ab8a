"""Volumes made from objects of the API server: files, modes, words, waits and refreshes."""

from __future__ import annotations

from typing import Any

from provide.volumes.samples import NODE, inputs, make_pod, moment, roster

from pykubelet.base.api.codec import from_object
from pykubelet.base.api.core import ConfigMap, Pod, Secret, Volume
from pykubelet.base.kit.values import replace
from pykubelet.base.model.certificates import PodCertificate
from pykubelet.base.model.content import (
    Absent,
    CertificateKey,
    CertificateRecord,
    Content,
    ContentKey,
    ContentKind,
    Found,
    ObjectKey,
    Pending,
    Present,
    Token,
    TokenKey,
    TrustBundle,
    Unreadable,
)
from pykubelet.base.model.ids import PodUID
from pykubelet.base.model.mounts import PodMounts
from pykubelet.base.model.paths import Paths
from pykubelet.base.model.waits import Owner, Wait
from pykubelet.provide.volumes.decide import step
from pykubelet.provide.volumes.kind import Plan, RefusedPlan, UndecidedPlan
from pykubelet.provide.volumes.model import (
    Command,
    Inputs,
    InputsChanged,
    MakePodDirectory,
    RecordEvent,
    Result,
    SetUp,
    SetUpEnded,
    State,
)
from pykubelet.provide.volumes.payloads.api_files import user_of_files
from pykubelet.provide.volumes.payloads.payload import PayloadFile, PayloadPlan
from pykubelet.provide.volumes.plan import plan_volume

PATHS = Paths("/k", "/logs")
UID = PodUID("u1")
MAP = ObjectKey(ContentKind.CONFIG_MAP, "shop", "m")
SECRET = ObjectKey(ContentKind.SECRET, "shop", "s")
TOKEN = TokenKey(UID, "shop", "web", "clerk", "", 3607)
MAP_VOLUME = from_object(Volume, {"name": "v", "configMap": {"name": "m"}})
KUBE_API = from_object(
    Volume,
    {
        "name": "v",
        "projected": {
            "defaultMode": 0o644,
            "sources": [
                {"serviceAccountToken": {"path": "token", "expirationSeconds": 3607}},
                {"configMap": {"name": "m", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
                {"downwardAPI": {"items": [{"path": "namespace", "fieldRef": {"fieldPath": "metadata.namespace"}}]}},
            ],
        },
    },
)


def config_map(**data: str) -> Present:
    return Present(ConfigMap(data=data))


def known(**found: Found) -> Content:
    """By kind: `m` the ConfigMap, `s` the Secret, `t` the token."""
    objects = {key: found[name] for name, key in (("m", MAP), ("s", SECRET)) if name in found}
    return Content(True, objects, {TOKEN: found["t"]} if "t" in found else {})


def pod_of(volume: Volume, fs_group: int | None = None, run_as: int | None = None) -> Pod:
    plain = make_pod(volume, fs_group=fs_group)
    context = {} if fs_group is None else {"fsGroup": fs_group}
    if run_as is not None:
        context["runAsUser"] = run_as
    spec = {"serviceAccountName": "clerk", "securityContext": context}
    return from_object(Pod, {**_plain(plain), "spec": {**_plain(plain)["spec"], **spec}})


def _plain(pod: Pod) -> dict[str, dict[str, object]]:
    from pykubelet.base.api.codec import to_object

    return dict(to_object(pod))


def plan(volume: Volume, content: Content, pod: Pod | None = None) -> Plan:
    return plan_volume(pod or pod_of(volume), volume, Inputs(node=NODE, content=content), PATHS)


def files(plan: Plan) -> dict[str, tuple[bytes, int]]:
    assert isinstance(plan, PayloadPlan), plan
    return {file.path: (file.content, file.mode) for file in plan.files}


# What becomes of an object


def test_all_keys_of_a_config_map_become_files_on_the_disk() -> None:
    volume = from_object(Volume, {"name": "v", "configMap": {"name": "m", "defaultMode": 0o640}})
    made = plan(volume, known(m=Present(ConfigMap(data={"a": "1"}, binaryData={"b": b"\xff"}))))
    assert files(made) == {"a": (b"1", 0o640), "b": (b"\xff", 0o640)}
    assert isinstance(made, PayloadPlan)
    assert made.path == "/k/pods/u1/volumes/kubernetes.io~configmap/v" and not made.in_memory


def test_chosen_keys_of_a_secret_have_their_own_paths_and_modes_in_memory() -> None:
    items = [{"key": "a", "path": "deep/er", "mode": 0o400}, {"key": "b", "path": "b"}]
    volume = from_object(Volume, {"name": "v", "secret": {"secretName": "s", "items": items}})
    made = plan(volume, known(s=Present(Secret(data={"a": b"1", "b": b"2", "c": b"3"}))))
    assert files(made) == {"deep/er": (b"1", 0o400), "b": (b"2", 0o644)}
    assert isinstance(made, PayloadPlan)
    assert made.path == "/k/pods/u1/volumes/kubernetes.io~secret/v" and made.in_memory


def test_paths_may_be_written_in_more_than_one_way() -> None:
    items = [{"key": "a", "path": "./conf//app/"}, {"key": "b", "path": "./b"}]
    volume = from_object(Volume, {"name": "v", "configMap": {"name": "m", "items": items}})
    found = plan(volume, known(m=config_map(a="1", b="2")))
    assert files(found) == {"conf/app": (b"1", 0o644), "b": (b"2", 0o644)}


def test_keys_that_are_not_there_are_refused_in_the_references_words_unless_optional() -> None:
    for kind, name, words in (
        ("configMap", {"name": "m"}, "configmap references non-existent config key: x"),
        ("secret", {"secretName": "s"}, "references non-existent secret key: x"),
    ):
        source: dict[str, object] = {**name, "items": [{"key": "x", "path": "x"}, {"key": "a", "path": "a"}]}
        content = known(m=config_map(a="1"), s=Present(Secret(data={"a": b"1"})))
        assert plan(from_object(Volume, {"name": "v", kind: source}), content) == RefusedPlan(words)
        optional = from_object(Volume, {"name": "v", kind: {**source, "optional": True}})
        assert files(plan(optional, content)) == {"a": (b"1", 0o644)}


def test_on_a_node_without_an_api_server_the_object_is_named_too() -> None:
    until = "a manifest has it"
    source = {"name": "m", "items": [{"key": "x", "path": "x"}]}
    content = Content(has_manifests=True, objects={MAP: config_map(a="1")})
    words = "configmap references non-existent config key of the ConfigMap shop/m: x"
    assert plan(from_object(Volume, {"name": "v", "configMap": source}), content) == RefusedPlan(words, until)
    missing = Content(has_manifests=True, objects={MAP: Absent("no manifest has it")})
    assert plan(MAP_VOLUME, missing) == RefusedPlan("no manifest has it", until)
    assert plan(MAP_VOLUME, Content(has_manifests=True)) == UndecidedPlan(
        "no answer about configMap shop/m yet", (MAP,)
    )


def test_objects_that_are_not_there_are_refused_unless_optional() -> None:
    gone = known(m=Absent('configmap "m" not found'))
    assert plan(MAP_VOLUME, gone) == RefusedPlan('configmap "m" not found')
    optional = from_object(Volume, {"name": "v", "configMap": {"name": "m", "optional": True}})
    assert files(plan(optional, gone)) == {}
    unreadable = known(m=Unreadable("failed to sync configmap cache: no", 1.0))
    assert plan(optional, unreadable) == RefusedPlan("failed to sync configmap cache: no")


def test_without_an_answer_nothing_is_decided_and_without_an_api_server_it_is_refused() -> None:
    assert plan(MAP_VOLUME, Content(True)) == UndecidedPlan("no answer about configMap shop/m yet", (MAP,))
    assert plan(MAP_VOLUME, Content()) == RefusedPlan("kube client is not configured")


def test_a_projected_volume_has_all_its_sources_or_all_their_errors() -> None:
    content = known(m=config_map(**{"ca.crt": "CA"}), t=Present(Token("secret", 9.0)))
    assert files(plan(KUBE_API, content)) == {
        "token": (b"secret", 0o644),
        "ca.crt": (b"CA", 0o644),
        "namespace": (b"shop", 0o644),
    }
    bad = known(m=config_map(), t=Unreadable("failed to fetch token: no", 1.0))
    assert plan(KUBE_API, bad) == RefusedPlan(
        "[failed to fetch token: no, configmap references non-existent config key: ca.crt]"
    )
    # an error is reported at once, whatever answers are still missing
    assert plan(KUBE_API, known(m=Absent('configmap "m" not found'))) == RefusedPlan('configmap "m" not found')
    undecided = plan(KUBE_API, Content(True))
    assert isinstance(undecided, UndecidedPlan) and undecided.awaited == (TOKEN, MAP)


def test_tokens_are_for_the_pods_user_or_group_alone() -> None:
    content = known(m=config_map(**{"ca.crt": "CA"}), t=Present(Token("secret", 9.0)))

    def token(**who: int) -> PayloadFile:
        made = plan(KUBE_API, content, pod_of(KUBE_API, **who))
        assert isinstance(made, PayloadPlan)
        assert [file.mode for file in made.files if file.path == "ca.crt"] == [0o644]
        (found,) = [file for file in made.files if file.path == "token"]
        return found

    assert (token().mode, token().owner) == (0o644, None)
    assert (token(run_as=1000).mode, token(run_as=1000).owner) == (0o600, 1000)
    assert (token(fs_group=7).mode, token(fs_group=7).owner) == (0o600, None)
    alone = pod_of(KUBE_API)
    container = {"name": "c", "image": "x", "securityContext": {"runAsUser": 1000}}
    spec = {**_plain(alone)["spec"], "ephemeralContainers": [{"name": "debug", "image": "x"}]}
    debugged = from_object(Pod, {**_plain(alone), "spec": {**spec, "containers": [container]}})
    assert user_of_files(debugged) is None  # an ephemeral container may run as any user
    settled = from_object(Pod, {**_plain(alone), "spec": {**_plain(alone)["spec"], "containers": [container]}})
    assert user_of_files(settled) == 1000


def test_the_owner_of_a_file_is_its_own_user_then_the_volumes_then_that_of_all_containers() -> None:
    def owners(kind: str, source: dict[str, Any], run_as: int | None = None) -> dict[str, int | None]:
        volume = from_object(Volume, {"name": "v", kind: source})
        content = known(
            m=config_map(a="1", b="2"), s=Present(Secret(data={"a": b"1", "b": b"2"})), t=Present(Token("t", 9.0))
        )
        made = plan(volume, content, pod_of(volume, run_as=run_as))
        assert isinstance(made, PayloadPlan), made
        return {file.path: file.owner for file in made.files}

    items = [{"key": "a", "path": "a", "user": 0}, {"key": "b", "path": "b"}]
    assert owners("configMap", {"name": "m", "defaultUser": 7}) == {"a": 7, "b": 7}
    assert owners("configMap", {"name": "m", "items": items}, run_as=1000) == {"a": 0, "b": None}
    assert owners("secret", {"secretName": "s", "defaultUser": 7, "items": items}) == {"a": 0, "b": 7}
    fields = [
        {"path": path, "fieldRef": {"fieldPath": "metadata.name"}, **more}
        for path, more in (("x", {}), ("y", {"user": 9}))
    ]
    assert owners("downwardAPI", {"defaultUser": 7, "items": fields}) == {"x": 7, "y": 9}
    token = {"path": "token", "expirationSeconds": 3607}
    sources = [{"serviceAccountToken": token}, {"downwardAPI": {"items": fields}}]
    assert owners("projected", {"sources": sources}, run_as=1000) == {"token": 1000, "x": None, "y": 9}
    assert owners("projected", {"defaultUser": 7, "sources": sources}, run_as=1000) == {"token": 7, "x": 7, "y": 9}
    own = [{"serviceAccountToken": {**token, "user": 0}}]
    assert owners("projected", {"defaultUser": 7, "sources": own}, run_as=1000) == {"token": 0}


def test_trust_bundles_may_be_empty_only_where_that_is_all_right() -> None:
    key = ObjectKey(ContentKind.TRUST_BUNDLE, "", "b")

    def volume(**more: Any) -> Volume:
        source = {"clusterTrustBundle": {"name": "b", "path": "ca", **more}}
        return from_object(Volume, {"name": "v", "projected": {"sources": [source]}})

    content = Content(True, {key: Present(TrustBundle("PEM"))})
    assert files(plan(volume(), content)) == {"ca": (b"PEM", 0o644)}
    absent = Content(True, {key: Absent("none")})
    assert plan(volume(), absent) == RefusedPlan("none")
    assert files(plan(volume(optional=True), absent)) == {"ca": (b"", 0o644)}
    assert plan(volume(name=""), absent) == RefusedPlan(
        "ClusterTrustBundle projection requires either name or signerName to be set"
    )


CERTIFICATE = CertificateKey(PodUID("u1"), "shop", "web", "v", 0, "x/y")


def certified(**paths: str) -> Volume:
    source = {"podCertificate": {"signerName": "x/y", "keyType": "ED25519", **paths}}
    return from_object(Volume, {"name": "v", "projected": {"sources": [source]}})


def with_certificate(found: Found | None) -> Content:
    return Content(True, certificates={CERTIFICATE: CertificateRecord(found=found)})


ISSUED = Present(PodCertificate("KEY\n", "CHAIN\n", 1.0, 2.0))


def test_the_files_of_a_certificate() -> None:
    volume = certified(credentialBundlePath="both.pem", keyPath="key.pem", certificateChainPath="chain.pem")
    expected = {"both.pem": (b"KEY\nCHAIN\n", 0o644), "key.pem": (b"KEY\n", 0o644), "chain.pem": (b"CHAIN\n", 0o644)}
    assert files(plan(volume, with_certificate(ISSUED))) == expected
    assert set(files(plan(certified(keyPath="k"), with_certificate(ISSUED)))) == {"k"}


def test_files_of_a_certificate_belong_to_the_pods_user() -> None:
    volume = certified(keyPath="k")
    found = plan(volume, with_certificate(ISSUED), pod_of(volume, run_as=1000))
    assert isinstance(found, PayloadPlan)
    (file,) = found.files
    assert (file.mode, file.owner) == (0o600, 1000)
    assert "KEY" not in repr(found)


def test_a_certificate_that_was_requested_a_moment_ago_is_awaited() -> None:
    for content in (Content(True), with_certificate(None)):
        found = plan(certified(keyPath="k"), content)
        assert isinstance(found, UndecidedPlan)
        assert found.awaited == (CERTIFICATE,)


def test_a_certificate_that_no_signer_has_issued_refuses_the_volume_with_its_wait() -> None:
    wait = Wait("pod certificate", Owner.SIGNER, 1.0, "of signer x/y")
    found = plan(certified(keyPath="k"), with_certificate(Pending("credential bundle is not issued yet", wait)))
    assert isinstance(found, RefusedPlan)
    assert (found.error, found.waits) == ("credential bundle is not issued yet", (wait,))
    refused = plan(certified(keyPath="k"), with_certificate(Absent("PodCertificateRequest was permanently denied")))
    assert refused == RefusedPlan("PodCertificateRequest was permanently denied")


def test_a_volume_with_more_certificates_than_are_requested_is_refused() -> None:
    source = {"podCertificate": {"signerName": "x/y", "keyType": "ED25519", "keyPath": "k"}}
    volume = from_object(Volume, {"name": "v", "projected": {"sources": [source] * 33}})
    records = {replace(CERTIFICATE, source=index): CertificateRecord(found=ISSUED) for index in range(33)}
    text = "the pod has more than 32 podCertificate sources: the others are not requested"
    assert plan(volume, Content(True, certificates=records)) == RefusedPlan(text)


def test_without_an_api_server_there_are_no_certificates() -> None:
    assert plan(certified(keyPath="k"), Content()) == RefusedPlan("unimplemented")


def test_directories_for_volumes_mounted_inside_are_made_with_the_volume() -> None:
    paths = {"v": "/etc/app", "w": "/etc/app/cache", "x": "/etc/app/cache/deep", "y": "/etc/apple"}
    volumes = [{"name": "v", "configMap": {"name": "m"}}, *({"name": n, "emptyDir": {}} for n in "wxy")]
    mounts = [{"name": name, "mountPath": path} for name, path in paths.items()]
    pod = from_object(
        Pod,
        {
            "metadata": {"name": "web", "namespace": "shop", "uid": "u1"},
            "spec": {"containers": [{"name": "main", "volumeMounts": mounts}], "volumes": volumes},
        },
    )
    made = plan(pod.spec.volumes[0], known(m=config_map()), pod)
    assert isinstance(made, PayloadPlan) and made.nested == ("cache",)


# A volume's life


class Driver:
    """The decisions about one pod with a volume, without I/O."""

    def __init__(self, volume: Volume) -> None:
        self.seen = inputs(roster(pod_of(volume)))
        self.state = State()
        self.at = 0.0

    def knows(self, content: Content) -> list[Command]:
        self.at += 1
        self.seen = Inputs(self.seen.roster, self.seen.lifecycles, self.seen.observed, self.seen.node, content)
        self.state, commands = step(self.state, InputsChanged(self.seen), moment(self.at), PATHS)
        return [command for command in commands if isinstance(command, (SetUp, RecordEvent))]

    def ended(self, result: Result = Result.DONE, error: str = "") -> list[Command]:
        self.at += 0.01
        event = SetUpEnded(UID, "v", result, error)
        self.state, commands = step(self.state, event, moment(self.at), PATHS)
        return [command for command in commands if isinstance(command, (SetUp, RecordEvent))]

    @property
    def mounts(self) -> PodMounts:
        return self.state.mounts.pods[UID]

    def waits(self) -> list[tuple[str, str, str]]:
        return [(wait.what, wait.subject, wait.owner) for wait in self.mounts.waits]


def texts(commands: list[Command]) -> list[str]:
    return [command.kube_event.message for command in commands if isinstance(command, RecordEvent)]


def written(commands: list[Command]) -> list[dict[str, bytes]]:
    plans = [command.plan for command in commands if isinstance(command, SetUp)]
    return [{file.path: file.content for file in plan.files} for plan in plans if isinstance(plan, PayloadPlan)]


def test_a_pod_waits_by_name_and_is_set_up_by_the_answer() -> None:
    driver = Driver(MAP_VOLUME)
    assert driver.knows(Content(True)) == []
    assert driver.waits() == [("configMap", "shop/m", Owner.OBJECT_CACHE)]
    assert written(driver.knows(known(m=config_map(a="1")))) == [{"a": b"1"}]
    driver.ended()
    assert driver.mounts.ready and driver.mounts.waits == ()


def test_the_directory_of_a_pod_comes_with_the_volume_whose_content_is_awaited() -> None:
    driver = Driver(KUBE_API)

    def kinds(content: Content) -> list[type[Command]]:
        _, commands = step(State(), InputsChanged(replace(driver.seen, content=content)), moment(1), PATHS)
        return [type(command) for command in commands]

    assert kinds(Content(True)) == []
    assert kinds(known(m=config_map(**{"ca.crt": "CA"}), t=Present(Token("t", 9.0)))) == [SetUp]
    assert kinds(known(m=Absent("no such"), t=Present(Token("t", 9.0)))) == [RecordEvent, MakePodDirectory]


def test_a_missing_object_is_reported_once_and_the_volume_made_as_soon_as_it_comes() -> None:
    driver = Driver(MAP_VOLUME)
    gone = Absent('configmap "m" not found')
    assert texts(driver.knows(known(m=gone))) == ['MountVolume.SetUp failed for volume "v" : configmap "m" not found']
    assert driver.knows(known(m=Absent('configmap "m" not found'), s=Absent("other"))) == []
    assert not driver.mounts.ready and not driver.mounts.mounting
    assert written(driver.knows(known(m=config_map(a="1")))) == [{"a": b"1"}]


def test_new_content_is_written_into_the_running_pods_volume_and_other_objects_mean_nothing() -> None:
    driver = Driver(MAP_VOLUME)
    first = config_map(a="1")
    driver.knows(known(m=first))
    driver.ended()
    assert driver.knows(known(m=first, s=Present(Secret()))) == []
    assert written(driver.knows(known(m=config_map(a="2")))) == [{"a": b"2"}]
    assert driver.mounts.ready
    # while it is being written, there is news again
    assert driver.knows(known(m=config_map(a="3"))) == []
    assert written(driver.ended()) == [{"a": b"3"}]
    assert driver.ended() == [] and driver.mounts.ready


def test_a_volume_in_place_stays_when_its_object_goes_with_one_event() -> None:
    driver = Driver(MAP_VOLUME)
    driver.knows(known(m=config_map(a="1")))
    driver.ended()
    expected = ['MountVolume.SetUp failed for volume "v" : configmap "m" not found']
    assert texts(driver.knows(known(m=Absent('configmap "m" not found')))) == expected
    assert driver.mounts.ready and driver.mounts.waits[0].detail == 'configmap "m" not found'
    assert driver.knows(known(m=Absent('configmap "m" not found'))) == []
    assert driver.knows(known(m=config_map(a="1"))) == []  # the same again: nothing to write
    assert driver.mounts.waits == ()
    assert written(driver.knows(known(m=config_map(a="2")))) == [{"a": b"2"}]


def test_a_pod_waits_for_a_signer_by_name_and_its_volume_follows_each_certificate() -> None:
    driver = Driver(certified(credentialBundlePath="b"))
    driver.knows(with_certificate(None))
    assert driver.waits() == [("pod certificate", "of signer x/y", Owner.OBJECT_CACHE)]
    wait = Wait("pod certificate", Owner.SIGNER, 7.0, "of signer x/y", detail="PodCertificateRequest shop/req-1")
    pending = with_certificate(Pending("credential bundle is not issued yet", wait))
    text = 'MountVolume.SetUp failed for volume "v" : credential bundle is not issued yet'
    assert texts(driver.knows(pending)) == [text]
    assert list(driver.mounts.waits) == [wait]
    assert driver.knows(replace(pending)) == []  # one Event
    assert written(driver.knows(with_certificate(ISSUED))) == [{"b": b"KEY\nCHAIN\n"}]
    driver.ended()
    assert driver.mounts.ready and driver.mounts.waits == ()
    newer = Present(PodCertificate("KEY2\n", "CHAIN2\n", 3.0, 4.0))
    assert written(driver.knows(with_certificate(newer))) == [{"b": b"KEY2\nCHAIN2\n"}]
    driver.ended()
    # after a restart it is requested anew: the volume stays as it is
    assert driver.knows(pending) == []
    assert driver.mounts.ready and driver.mounts.waits == ()
    refused = 'MountVolume.SetUp failed for volume "v" : denied'
    assert texts(driver.knows(with_certificate(Absent("denied")))) == [refused]
    assert driver.mounts.ready


def test_a_sandbox_need_not_wait_for_tokens_and_writing_but_for_everything_else() -> None:
    driver = Driver(KUBE_API)
    ca = config_map(**{"ca.crt": "CA"})

    def mounting(content: Content) -> bool:
        driver.knows(content)
        return driver.mounts.mounting

    assert not mounting(Content(True))  # it is not known yet whether the ConfigMap is there
    assert mounting(known(m=ca))
    assert not mounting(known(m=ca, t=Unreadable("failed to fetch token: no", 1.0)))
    assert mounting(known(m=ca, t=Present(Token("t", 9.0))))  # being written
    driver.ended(Result.FAILED, "no space left on device")
    assert not driver.mounts.mounting
    assert not driver.mounts.ready


def test_a_rejected_pod_hears_nothing_of_content() -> None:
    driver = Driver(MAP_VOLUME)
    driver.seen = inputs(roster(pod_of(MAP_VOLUME), rejected=True))
    assert driver.knows(known(m=config_map(a="1"))) == []


def keys_of(state: State) -> set[ContentKey]:
    return set(state.pods[UID].keys)


def test_only_what_a_container_uses_counts() -> None:
    driver = Driver(KUBE_API)
    driver.knows(Content(True))
    assert keys_of(driver.state) == {TOKEN, MAP}
