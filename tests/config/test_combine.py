"""Defaults, file, drop-ins and flags in one: who wins, what merges, what is fatal."""

from __future__ import annotations

from typing import Any

import pytest

from pykubelet.config.combine import File, FlagInput, combine, merge_patch
from pykubelet.config.errors import ConfigError
from pykubelet.config.kubelet import Tracing
from pykubelet.config.settings import Flags, Settings
from pykubelet.config.shown import shown
from pykubelet.config.validate_host import HostFacts

HEADER = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n"


def _file(body: str, path: str = "/etc/kubernetes/kubelet.yaml", header: str = HEADER) -> File:
    return File(path, (header + body).encode())


def _drop_in(number: int, body: str) -> File:
    return _file(body, f"/etc/kubelet.d/{number}.conf")


def _settings(file: str | None = None, *drop_ins: str, flags: dict[str, Any] | None = None) -> Settings:
    given = FlagInput(fields=flags or {}, names={path: path.lower() for path in flags or {}})
    parts = tuple(_drop_in(number, body) for number, body in enumerate(drop_ins))
    return combine(None if file is None else _file(file), parts, given, None)


def test_without_a_file_the_legacy_defaults_hold() -> None:
    config = _settings().config
    assert config.authentication.anonymous.enabled is True
    assert config.authentication.webhook.enabled is False
    assert config.authorization.mode == "AlwaysAllow"
    assert config.readOnlyPort == 10255
    assert config.evictionHard == {}


def test_with_a_file_the_documented_defaults_hold() -> None:
    config = _settings("").config
    assert config.authentication.anonymous.enabled is False
    assert config.authentication.webhook.enabled is True
    assert config.authorization.mode == "Webhook"
    assert config.readOnlyPort == 0
    assert config.evictionHard == {
        "memory.available": "100Mi",
        "nodefs.available": "10%",
        "nodefs.inodesFree": "5%",
        "imagefs.available": "15%",
        "imagefs.inodesFree": "5%",
    }


def test_drop_ins_alone_go_over_the_legacy_defaults() -> None:
    config = _settings(None, "maxPods: 7").config
    assert config.maxPods == 7
    assert config.readOnlyPort == 10255
    assert config.evictionHard == {}


def test_precedence_is_flag_last_drop_in_earlier_drop_in_file_default() -> None:
    assert _settings("").config.maxPods == 110
    assert _settings("maxPods: 1").config.maxPods == 1
    assert _settings("maxPods: 1", "maxPods: 2").config.maxPods == 2
    assert _settings("maxPods: 1", "maxPods: 2", "maxPods: 3").config.maxPods == 3
    assert _settings("maxPods: 1", "maxPods: 2", "maxPods: 3", flags={"maxPods": 4}).config.maxPods == 4


def test_drop_ins_merge_maps_and_replace_lists_and_scalars() -> None:
    config = _settings(
        'clusterDNS: [1.1.1.1, 2.2.2.2]\nkubeReserved: {cpu: "1", memory: 1Gi}\n'
        "authentication: {x509: {clientCAFile: /ca}}",
        'clusterDNS: [3.3.3.3]\nkubeReserved: {cpu: "2"}\nauthentication: {anonymous: {enabled: true}}',
    ).config
    assert config.clusterDNS == ("3.3.3.3",)
    assert config.kubeReserved == {"cpu": "2", "memory": "1Gi"}
    assert config.authentication.x509.clientCAFile == "/ca"
    assert config.authentication.anonymous.enabled is True


def test_null_in_a_drop_in_deletes_and_the_default_comes_back() -> None:
    config = _settings("maxPods: 7\nkubeReserved: {memory: 1Gi}", "maxPods: null\nkubeReserved: {memory: null}").config
    assert config.maxPods == 110
    assert config.kubeReserved == {}


def test_null_inside_a_map_deletes_in_a_drop_in_and_is_the_zero_value_in_the_file() -> None:
    gates = "featureGates: {MemoryQoS: null, SELinuxMount: true}"
    assert _settings(gates).config.featureGates == {"MemoryQoS": False, "SELinuxMount": True}
    assert _settings("featureGates: {MemoryQoS: true}", gates).config.featureGates == {"SELinuxMount": True}


def test_a_period_that_is_null_is_deleted_by_a_drop_in_and_refused_in_the_file() -> None:
    assert _settings("syncFrequency: 7s", "syncFrequency: null").config.syncFrequency.s == 60
    with pytest.raises(ConfigError, match=r"kubelet\.yaml: syncFrequency: invalid value null: must be a duration"):
        _settings("syncFrequency: null")


@pytest.mark.parametrize("limit", [-1, -5])
def test_every_negative_limit_of_processes_is_none(limit: int) -> None:
    assert _settings(f"podPidsLimit: {limit}").config.podPidsLimit == -1


def test_eviction_thresholds_of_a_drop_in_merge_by_signal() -> None:
    config = _settings("", "evictionHard: {memory.available: 1Gi}").config
    assert config.evictionHard["memory.available"] == "1Gi"
    assert config.evictionHard["nodefs.available"] == "10%"


def test_eviction_thresholds_of_the_file_replace_the_defaults_unless_merging_is_asked_for() -> None:
    assert _settings("evictionHard: {memory.available: 1Gi}").config.evictionHard == {"memory.available": "1Gi"}
    assert _settings("evictionHard: {}").config.evictionHard == {}
    merged = _settings("evictionHard: {memory.available: 1Gi}\nmergeDefaultEvictionSettings: true").config
    assert merged.evictionHard["memory.available"] == "1Gi"
    assert len(merged.evictionHard) == 5


def test_a_map_flag_replaces_the_files_map_but_feature_gates_merge() -> None:
    settings = _settings(
        "evictionHard: {memory.available: 1Gi}\nfeatureGates: {MemoryQoS: true, SELinuxMount: true}",
        flags={
            "evictionHard": {"nodefs.available": "1%"},
            "featureGates": {"SELinuxMount": False, "EventedPLEG": True},
        },
    )
    assert settings.config.evictionHard == {"nodefs.available": "1%"}
    assert settings.config.featureGates == {"MemoryQoS": True, "SELinuxMount": False, "EventedPLEG": True}
    assert settings.enabled("MemoryQoS") and settings.enabled("EventedPLEG") and not settings.enabled("SELinuxMount")


def test_a_zero_given_by_a_flag_is_not_defaulted_again() -> None:
    with pytest.raises(ConfigError) as error:
        _settings("", flags={"port": 0})
    assert error.value.problems == ("invalid configuration: port (--port) 0 must be between 1 and 65535, inclusive",)


def test_the_report_period_follows_the_update_period_when_only_that_is_given() -> None:
    assert _settings("nodeStatusUpdateFrequency: 4s").config.nodeStatusReportFrequency.s == 4
    both = _settings("nodeStatusUpdateFrequency: 4s\nnodeStatusReportFrequency: 1m").config
    assert both.nodeStatusReportFrequency.s == 60
    assert _settings("", "nodeStatusUpdateFrequency: 4s").config.nodeStatusReportFrequency.s == 300


@pytest.mark.parametrize(
    ("body", "serialize"),
    [
        ("", True),
        ("maxParallelImagePulls: 1", True),
        ("maxParallelImagePulls: 2", False),
        ("serializeImagePulls: false", False),
        ("serializeImagePulls: false\nmaxParallelImagePulls: 3", False),
    ],
)
def test_parallel_pulls_switch_serial_pulling_off(body: str, serialize: bool) -> None:
    assert _settings(body).config.serializeImagePulls is serialize


def test_gates_decide_about_defaults() -> None:
    off = "featureGates: {KubeletCrashLoopBackOffMax: false, KubeletEnsureSecretPulledImages: false}"
    assert _settings("").config.crashLoopBackOff.maxContainerRestartPeriod is not None
    assert _settings(off).config.crashLoopBackOff.maxContainerRestartPeriod is None
    assert _settings(off).config.imagePullCredentialsVerificationPolicy == ""
    by_flag = {"featureGates": {"KubeletCrashLoopBackOffMax": False, "KubeletEnsureSecretPulledImages": False}}
    assert _settings("", flags=by_flag).config.crashLoopBackOff.maxContainerRestartPeriod is None


def test_relative_paths_of_the_file_are_below_its_directory_and_those_of_drop_ins_stay() -> None:
    config = _settings(
        "staticPodPath: manifests\nauthentication: {x509: {clientCAFile: pki/ca.crt}}\ntlsCertFile: ../t.crt\n"
        "tlsPrivateKeyFile: /abs/t.key\nresolvConf: r.conf\nvolumePluginDir: plugins\npodLogsDir: logs\n",
        "tlsCertFile: x.crt",
    ).config
    assert config.staticPodPath == "/etc/kubernetes/manifests"
    assert config.authentication.x509.clientCAFile == "/etc/kubernetes/pki/ca.crt"
    assert config.tlsCertFile == "x.crt"
    assert config.tlsPrivateKeyFile == "/abs/t.key"
    assert config.resolvConf == "/etc/kubernetes/r.conf"
    assert config.volumePluginDir == "/etc/kubernetes/plugins"
    assert config.podLogsDir == "/etc/kubernetes/logs"
    assert _settings('resolvConf: ""').config.resolvConf == ""


@pytest.mark.parametrize(
    ("header", "problems"),
    [
        (
            "",
            [
                'apiVersion: missing: must be "kubelet.config.k8s.io/v1beta1"',
                'kind: missing: must be "KubeletConfiguration"',
            ],
        ),
        (
            "apiVersion: v1\nkind: Pod\n",
            [
                'apiVersion: invalid value "v1": must be "kubelet.config.k8s.io/v1beta1"',
                'kind: invalid value "Pod": must be "KubeletConfiguration"',
            ],
        ),
    ],
)
def test_each_file_must_say_what_it_is(header: str, problems: list[str]) -> None:
    for drop_in in (False, True):
        bad = _file("maxPods: 1\n", "/x.conf", header)
        with pytest.raises(ConfigError) as error:
            combine(_file("") if drop_in else bad, (bad,) if drop_in else (), FlagInput(), None)
        assert list(error.value.problems) == [f"/x.conf: {text}" for text in problems]


def test_the_mistakes_of_all_files_are_reported_together() -> None:
    with pytest.raises(ConfigError) as error:
        _settings("maxPod: 1", "port: x\nprot: 1", "a: 1\na: 2\n")
    assert error.value.problems == (
        '/etc/kubelet.d/0.conf: port: invalid value "x": must be an integer from -2147483648 to 2147483647',
        "/etc/kubelet.d/1.conf: a: duplicate field: must be given once (line 4)",
    )
    assert [remark.line for remark in error.value.remarks] == [
        '/etc/kubernetes/kubelet.yaml: maxPod: unknown field, ignored; did you mean "maxPods"?',
        '/etc/kubelet.d/0.conf: prot: unknown field, ignored; did you mean "port"?',
        "/etc/kubelet.d/1.conf: a: unknown field, ignored",
    ]


def test_what_the_reference_starts_with_is_only_remarked() -> None:
    """Unknown fields; fields given twice, of which the last value counts, but in drop-ins; and further documents."""
    settings = _settings(
        "maxPod: 1\nmaxPods: 2\nauthentication: {webhok: {enabled: true}}\nmaxPods: 3\n---\nmaxPods: 4\n",
        "newField: {of: [a, later, release]}\nport: 4000\n---\nport: [\n",
    )
    assert (settings.config.maxPods, settings.config.port) == (3, 4000)
    assert [remark.line for remark in settings.remarks] == [
        '/etc/kubernetes/kubelet.yaml: maxPod: unknown field, ignored; did you mean "maxPods"?',
        '/etc/kubernetes/kubelet.yaml: authentication.webhok: unknown field, ignored; did you mean "authentication.webhook"?',
        "/etc/kubernetes/kubelet.yaml: maxPods: duplicate field (line 6): the last value counts",
        "/etc/kubernetes/kubelet.yaml: more than one document (line 7): only the first one counts",
        "/etc/kubelet.d/0.conf: newField: unknown field, ignored",
        "/etc/kubelet.d/0.conf: more than one document (line 5): only the first one counts",
    ]


def test_unknown_fields_change_nothing() -> None:
    with_typos = _settings("maxPods: 7\nmaxPod: 1\nlogging: {verbosty: 4}", "logging: {formt: json}\nevictionHrad: {}")
    assert with_typos.config == _settings("maxPods: 7", "logging: {}").config


def test_a_violation_is_reported_with_the_typo_that_may_have_caused_it() -> None:
    with pytest.raises(ConfigError) as error:
        _settings("enforceNodeAllocatable: [pods, kube-reserved]\nkubeReservedCgruop: /kube")
    assert any("kubeReservedCgroup" in problem for problem in error.value.problems)
    assert [remark.field_path for remark in error.value.remarks] == ["kubeReservedCgruop"]


def test_an_empty_file_is_fatal() -> None:
    with pytest.raises(ConfigError) as error:
        combine(File("/k", b""), (), FlagInput(), None)
    assert str(error.value) == "/k: the file is empty: must hold a YAML or JSON object"


def test_a_violation_names_the_last_place_that_set_the_value() -> None:
    with pytest.raises(ConfigError) as error:
        _settings("maxPods: -1\nport: -1", "maxPods: -2")
    assert error.value.problems == (
        "invalid configuration: maxPods (--max-pods) -2 must not be a negative number (set in /etc/kubelet.d/0.conf)",
        "invalid configuration: port (--port) -1 must be between 1 and 65535, inclusive "
        "(set in /etc/kubernetes/kubelet.yaml)",
    )


def test_a_period_of_zero_is_the_default_in_a_file_and_on_the_command_line() -> None:
    assert _settings("fileCheckFrequency: 0s").config.fileCheckFrequency.s == 20
    given = FlagInput(fields={"fileCheckFrequency": "0s"}, names={"fileCheckFrequency": "file-check-frequency"})
    assert combine(None, (), given, None).config.fileCheckFrequency.s == 20


def test_given_fields_without_effect_are_named_once() -> None:
    settings = _settings(
        "hairpinMode: none\nmaxOpenFiles: 5\nstaticPodPath: /m\nlogging: {verbosity: 2}",
        "iptablesDropBit: 3",
    )
    assert settings.inert == ("hairpinMode", "iptablesDropBit")
    assert _settings("").inert == ()


def test_given_flags_without_effect_are_named_with_their_dashes() -> None:
    names = {"--storage-driver-db": "storage-driver-db", "--root-dir": "root-dir"}
    assert combine(None, (), FlagInput(names=names), None).inert == ("--storage-driver-db",)


@pytest.mark.parametrize(
    ("flags", "problem"),
    [
        (Flags(experimental_mounter_path="/m"), "--experimental-mounter-path is not supported"),
        (Flags(application_metrics_count_limit=5), "--application-metrics-count-limit is not supported"),
        (Flags(enable_load_reader=True), "--enable-load-reader is not supported"),
        (Flags(containerd="tcp://1.2.3.4:5"), '--containerd "tcp://1.2.3.4:5" must be a unix socket'),
        (Flags(housekeeping_interval_s=0), "--housekeeping-interval must be positive"),
        (Flags(extension_cpu_time_s=0), "--extension-cpu-time must be from 1ms to 100ms"),
        (Flags(extension_cpu_time_s=0.2), "--extension-cpu-time must be from 1ms to 100ms"),
        (Flags(global_housekeeping_interval_s=-1), "--global-housekeeping-interval must be positive"),
    ],
)
def test_flags_whose_effect_is_missing_are_refused(flags: Flags, problem: str) -> None:
    v1 = HostFacts(cgroup_v2=False, online_cpus=frozenset(), swap_on=False)
    given = FlagInput(fields={"failCgroupV1": False}, flags=flags)
    with pytest.raises(ConfigError, match=problem):
        combine(None, (), given, v1)


def test_cgroup_v2_has_no_load_averages_of_containers() -> None:
    v2 = HostFacts(cgroup_v2=True, online_cpus=frozenset(), swap_on=False)
    assert combine(None, (), FlagInput(flags=Flags(enable_load_reader=True)), v2).flags.enable_load_reader


@pytest.mark.parametrize(("flags", "age_s"), [(Flags(), 1), (Flags(housekeeping_interval_s=20.0), 15)])
def test_the_housekeeping_flags_allow_older_usage(flags: Flags, age_s: float) -> None:
    assert combine(None, (), FlagInput(flags=flags), None).usage_max_age_s == age_s


def test_dns_servers_that_are_no_addresses_are_warned_about() -> None:
    assert _settings("clusterDNS: [10.0.0.10, dns]").warnings == ("Invalid clusterDNS IP: dns",)


def test_tracing_is_off_unless_it_is_given() -> None:
    assert _settings("").config.tracing is None
    assert _settings("", "tracing: {}").config.tracing == Tracing()
    assert _settings("tracing: {samplingRatePerMillion: 1}", "tracing: null").config.tracing is None


def test_configz_leaves_out_what_the_kubelet_leaves_out() -> None:
    default = shown(_settings("").config)
    assert default["memorySwap"] == {} and default["authentication"]["x509"] == {}
    assert default["failSwapOn"] is True and default["seccompDefault"] is False
    assert default["imageMaximumGCAge"] == "0s" and default["logging"]["verbosity"] == 0
    assert default["logging"]["options"] == {"text": {"infoBufferSize": "0"}, "json": {"infoBufferSize": "0"}}
    absent = (
        "tracing",
        "userNamespaces",
        "clusterDNS",
        "clusterDomain",
        "kubeReserved",
        "rotateCertificates",
        "podsPerCore",
    )
    assert [name for name in absent if name in default] == []
    given = "registerWithTaints: [{key: a, effect: NoSchedule}]\nenforceNodeAllocatable: []\nuserNamespaces: {idsPerPod: 65536}"
    config = shown(_settings(given).config)
    assert config["registerWithTaints"] == [{"key": "a", "effect": "NoSchedule"}]
    assert config["enforceNodeAllocatable"] == [] and config["userNamespaces"] == {"idsPerPod": 65536}


def test_the_files_read_are_known() -> None:
    assert _settings("", "maxPods: 1").files == ("/etc/kubernetes/kubelet.yaml", "/etc/kubelet.d/0.conf")


@pytest.mark.parametrize(
    ("base", "patch", "merged"),
    [  # the examples of RFC 7386, appendix A
        ({"a": "b"}, {"a": "c"}, {"a": "c"}),
        ({"a": "b"}, {"b": "c"}, {"a": "b", "b": "c"}),
        ({"a": "b"}, {"a": None}, {}),
        ({"a": "b", "b": "c"}, {"a": None}, {"b": "c"}),
        ({"a": ["b"]}, {"a": "c"}, {"a": "c"}),
        ({"a": "c"}, {"a": ["b"]}, {"a": ["b"]}),
        ({"a": {"b": "c"}}, {"a": {"b": "d", "c": None}}, {"a": {"b": "d"}}),
        ({"a": [{"b": "c"}]}, {"a": [1]}, {"a": [1]}),
        (["a", "b"], ["c", "d"], ["c", "d"]),
        ({"a": "b"}, ["c"], ["c"]),
        ({"a": "foo"}, None, None),
        ({"a": "foo"}, "bar", "bar"),
        ({"e": None}, {"a": 1}, {"e": None, "a": 1}),
        ([1, 2], {"a": "b", "c": None}, {"a": "b"}),
        ({}, {"a": {"bb": {"ccc": None}}}, {"a": {"bb": {}}}),
    ],
)
def test_merge_patch(base: Any, patch: Any, merged: Any) -> None:
    assert merge_patch(base, patch) == merged


def test_key_exchange_groups_that_cannot_be_used_are_warned_of() -> None:
    text = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\ntlsCurvePreferences: [4588, 29]\n"
    settings = combine(File("/k.yaml", text.encode()), (), FlagInput(), None)
    assert settings.warnings == ("tlsCurvePreferences: 4588 (X25519MLKEM768) cannot be used here; the others are",)
