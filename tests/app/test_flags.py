"""The command line: syntax as pflag's, each flag's type and target, the texts of errors."""

from __future__ import annotations

from typing import Any

import pytest

from pykubelet.app.flags import FlagError, parse_command_line
from pykubelet.app.flags_parse import read_flags
from pykubelet.app.flags_table import ALL, CADVISOR, FIELDS, IN_FILE, NOT_DEPRECATED, OWN
from pykubelet.config.schema import MapOf, Scalar, check, config_shape, set_path
from pykubelet.config.settings import Flags

# Flags that have no field, from the reference's command line documentation.
WITHOUT_FIELD = """
config config-dir kubeconfig bootstrap-kubeconfig hostname-override node-ip cert-dir cloud-provider root-dir
seccomp-default node-labels lock-file exit-on-lock-contention minimum-container-ttl-duration
maximum-dead-containers-per-container maximum-dead-containers experimental-mounter-path
experimental-allocatable-ignore-eviction runtime-cgroups image-credential-provider-config
image-credential-provider-bin-dir housekeeping-interval max-housekeeping-interval runonce
"""
# The first was once the reference's too: the port of cAdvisor's own pages.
OUR_OWN = "cadvisor-port emulated-version eviction-dry-run eviction-stall extension extension-cpu-time"
CADVISOR_FLAGS = """
application-metrics-count-limit boot-id-file container-hints containerd containerd-namespace enable-load-reader
event-storage-age-limit event-storage-event-limit global-housekeeping-interval log-cadvisor-usage machine-id-file
storage-driver-user storage-driver-password storage-driver-host storage-driver-db storage-driver-table
storage-driver-secure storage-driver-buffer-duration
"""
WITH_FIELD = """
enable-server fail-swap-on pod-manifest-path sync-frequency file-check-frequency http-check-frequency manifest-url
manifest-url-header address port read-only-port fail-cgroupv1 container-runtime-endpoint image-service-endpoint
anonymous-auth authentication-token-webhook authentication-token-webhook-cache-ttl client-ca-file authorization-mode
authorization-webhook-cache-authorized-ttl authorization-webhook-cache-unauthorized-ttl tls-cert-file
tls-private-key-file rotate-server-certificates tls-cipher-suites tls-min-version rotate-certificates registry-qps
registry-burst event-qps event-burst enable-debugging-handlers contention-profiling healthz-port healthz-bind-address
oom-score-adj cluster-domain volume-plugin-dir cluster-dns streaming-connection-idle-timeout
node-status-update-frequency minimum-image-ttl-duration image-gc-high-threshold image-gc-low-threshold
volume-stats-agg-period feature-gates kubelet-cgroups system-cgroups provider-id cgroups-per-qos cgroup-driver
cgroup-root cpu-manager-policy cpu-manager-policy-options cpu-manager-reconcile-period qos-reserved
topology-manager-policy runtime-request-timeout hairpin-mode max-pods pod-cidr pod-max-pids resolv-conf cpu-cfs-quota
cpu-cfs-quota-period enable-controller-attach-detach make-iptables-util-chains container-log-max-size
container-log-max-files allowed-unsafe-sysctls node-status-max-images kernel-memcg-notification
local-storage-capacity-isolation max-open-files kube-api-content-type kube-api-qps kube-api-burst serialize-image-pulls
eviction-hard eviction-soft eviction-soft-grace-period eviction-pressure-transition-period
eviction-max-pod-grace-period eviction-minimum-reclaim pods-per-core protect-kernel-defaults reserved-cpus
topology-manager-scope topology-manager-policy-options system-reserved kube-reserved enforce-node-allocatable
system-reserved-cgroup kube-reserved-cgroup logging-format log-flush-frequency v vmodule log-text-split-stream
log-text-info-buffer-size log-json-split-stream log-json-info-buffer-size memory-manager-policy reserved-memory
register-node register-with-taints
"""
# By kind: a text, the plain value, and a text that is refused (None: any text is fine).
SAMPLES: dict[str, tuple[str, Any, str | None]] = {
    "str": ("x", "x", None),
    "bool": ("true", True, "yes"),
    "int32": ("7", 7, "many"),
    "stalls": ("memory.full=20%,io.some=60%", {"memory.full": "20%", "io.some": "60%"}, "memory.full=200%"),
    "int64": ("7", 7, "many"),
    "verbosity": ("7", 7, "-1"),
    "duration": ("90s", "1m30s", "90"),
    "ip": ("fd00::1", "fd00::1", "host"),
    "node-ip": ("1.2.3.4,fd00::1", ("1.2.3.4", "fd00::1"), None),
    "strings": ("a,b", ["a", "b"], None),
    "texts": ("a,b=c", ("a,b=c",), None),
    "map": ("a=1, b=2", {"a": "1", "b": "2"}, "a"),
    "map<": ("memory.available<1Gi,pid.available<5%", {"memory.available": "1Gi", "pid.available": "5%"}, "a=1"),
    "map-whole": ("a=1,2", {"a": "1,2"}, "a"),
    "bools": ("A=true,B=false", {"A": True, "B": False}, "A=maybe"),
    "multimap": ("a:1,b:2,a:3", {"a": ["1", "3"], "b": ["2"]}, "a"),
    "labels": ("a=1,b", {"a": "1", "b": ""}, None),
    "quantity": ("1Ki", "1Ki", "1 KB"),
    "vmodule": ("a*=3", [{"filePattern": "a*", "verbosity": 3}], "a"),
    "taints": ("k=v:NoSchedule", [{"key": "k", "value": "v", "effect": "NoSchedule"}], "k=v"),
    "reserved-memory": ("0:memory=1Gi", [{"numaNode": 0, "limits": {"memory": "1Gi"}}], "memory=1Gi"),
}
TARGETS = [flag for flag in (*OWN, *FIELDS) if flag.target]


def _read(*argv: str) -> Any:
    return read_flags(parse_command_line(argv))


def _error(*argv: str) -> str:
    with pytest.raises(FlagError) as error:
        _read(*argv)
    return str(error.value)


def test_the_flags_are_exactly_the_references() -> None:
    assert sorted(flag.name for flag in OWN) == sorted([*WITHOUT_FIELD.split(), *OUR_OWN.split()])
    assert sorted(flag.name for flag in CADVISOR) == sorted(CADVISOR_FLAGS.split())
    assert sorted(flag.name for flag in FIELDS) == sorted(WITH_FIELD.split())
    assert set(ALL) == {*(flag.name for flag in (*OWN, *CADVISOR, *FIELDS)), "version", "help"}


@pytest.mark.parametrize("flag", FIELDS, ids=[flag.name for flag in FIELDS])
def test_a_flag_that_sets_a_field_gives_it_a_value_the_field_takes(flag: Any) -> None:
    text, value, refused = SAMPLES[flag.kind]
    given = _read(f"--{flag.name}={text}")
    assert given.fields == {flag.target: value}
    assert given.names == {flag.target: flag.name}
    document: dict[str, Any] = {}
    set_path(document, flag.target, value)
    assert check(document) == []
    if refused is not None:
        shown = "-v, --v" if flag.name == "v" else f"--{flag.name}"
        assert _error(f"--{flag.name}={refused}").startswith(f'invalid argument "{refused}" for "{shown}" flag: ')


@pytest.mark.parametrize("flag", OWN, ids=[flag.name for flag in OWN])
def test_a_flag_without_a_field_sets_its_attribute(flag: Any) -> None:
    text, value, _ = SAMPLES[flag.kind]
    given = _read(f"--{flag.name}={text}")
    assert given.fields == {}
    assert given.names == {f"--{flag.name}": flag.name}
    if flag.attribute:
        found = getattr(given.flags, flag.attribute)
        if flag.kind == "duration":
            assert found == 90.0
        elif isinstance(found, str) and found != value:
            assert found.startswith("/") and found.endswith("/x")
        else:
            assert found == value


@pytest.mark.parametrize("flag", CADVISOR, ids=[flag.name for flag in CADVISOR])
def test_flags_of_cadvisor_are_accepted_by_1_36_only(flag: Any) -> None:
    text, _, refused = SAMPLES[flag.kind]
    old = "--emulated-version=1.36"
    given = _read(f"--{flag.name}={text}", old)
    assert given.fields == {} and (given.flags == Flags(emulated_version="1.36")) is not bool(flag.attribute)
    if refused is not None:
        assert "invalid argument" in _error(old, f"--{flag.name}={refused}")
    assert (
        _error(f"--{flag.name}={text}") == f"unknown flag: --{flag.name} (Kubernetes 1.37 has removed it: leave it out)"
    )


def test_booleans_of_flags_have_boolean_fields() -> None:
    shape = config_shape()
    for flag in FIELDS:
        node: Any = shape
        for part in flag.target.split("."):
            node = node.fields[part].node
        assert (flag.kind == "bool") == (isinstance(node, Scalar) and node.kind == "bool"), flag
        assert flag.kind not in ("map", "map<", "map-whole", "bools") or isinstance(node, MapOf), flag


@pytest.mark.parametrize(
    ("argv", "found"),
    [
        (["--max-pods=5"], "5"),
        (["--max-pods", "5"], "5"),
        (["--max_pods", "5"], "5"),
        (["--max-pods", "3", "--max-pods=5"], "5"),
        (["--max-pods", "-5"], "-5"),
    ],
)
def test_long_flags(argv: list[str], found: str) -> None:
    line = parse_command_line(argv)
    assert line.last("max-pods") == found
    assert line.words == ()


@pytest.mark.parametrize("argv", [["-v", "4"], ["-v4"], ["-v=4"], ["--v", "4"], ["--v=4"]])
def test_verbosity_in_every_spelling(argv: list[str]) -> None:
    assert _read(*argv).fields == {"logging.verbosity": 4}


def test_booleans_take_a_value_only_behind_an_equals_sign() -> None:
    line = parse_command_line(["--runonce", "false", "--seccomp-default=false"])
    assert line.last("runonce") == "true"
    assert line.last("seccomp-default") == "false"
    assert line.words == ("false",)


def test_two_dashes_end_the_flags() -> None:
    line = parse_command_line(["--max-pods", "5", "--", "--port", "6"])
    assert line.words == ("--port", "6")
    assert parse_command_line(["-"]).words == ("-",)


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--nope"], "unknown flag: --nope"),
        (["--nope=5"], "unknown flag: --nope"),
        (["--max-pod", "5"], "unknown flag: --max-pod (did you mean --max-pods?)"),
        (["-x"], "unknown shorthand flag: 'x' in -x"),
        (["--max-pods"], "flag needs an argument: --max-pods"),
        (["-v"], "flag needs an argument: 'v' in -v"),
        (["--=5"], "bad flag syntax: --=5"),
        (["---port"], "bad flag syntax: ---port"),
        (
            ["--max-pods=x"],
            'invalid argument "x" for "--max-pods" flag: "x" is not a whole number',
        ),
        (
            ["--max-pods=9999999999"],
            'invalid argument "9999999999" for "--max-pods" flag: 9999999999 is out of range: '
            "must be from -2147483648 to 2147483647",
        ),
        (
            ["--max-pods="],
            'invalid argument "" for "--max-pods" flag: "" is not a whole number',
        ),
        (
            ["-v", "x"],
            'invalid argument "x" for "-v, --v" flag: "x" is not a whole number from 0',
        ),
        (
            ["--fail-swap-on=no"],
            'invalid argument "no" for "--fail-swap-on" flag: "no" is not a boolean: must be true or false',
        ),
        (
            ["--sync-frequency=10"],
            'invalid argument "10" for "--sync-frequency" flag: missing unit in duration "10": '
            "must be like 30s, 1h30m or 500ms",
        ),
        (["--address=x"], 'invalid argument "x" for "--address" flag: "x" is not a valid IP address'),
        (
            ["--feature-gates=A"],
            'invalid argument "A" for "--feature-gates" flag: malformed pair, expect string=bool',
        ),
        (
            ["--feature-gates=A=x"],
            'invalid argument "A=x" for "--feature-gates" flag: invalid value of A: x, err: '
            '"x" is not a boolean: must be true or false',
        ),
        (
            ["--eviction-hard=a=1"],
            'invalid argument "a=1" for "--eviction-hard" flag: malformed pair, expect string<string',
        ),
        (
            ["--kube-reserved=cpu"],
            'invalid argument "cpu" for "--kube-reserved" flag: malformed pair, expect string=string',
        ),
        (
            ["--manifest-url-header=a"],
            'invalid argument "a" for "--manifest-url-header" flag: malformed pair, expect string:string',
        ),
        (
            ["--register-with-taints=k=v:Never"],
            'invalid argument "k=v:Never" for "--register-with-taints" flag: '
            "invalid taint effect: Never, unsupported taint effect",
        ),
        (
            ["--register-with-taints=k"],
            'invalid argument "k" for "--register-with-taints" flag: invalid taint spec: k',
        ),
        (
            ["--register-with-taints=k=v"],
            'invalid argument "k=v" for "--register-with-taints" flag: invalid taint spec: k=v',
        ),
        (
            ["--reserved-memory=memory=1Gi"],
            'invalid argument "memory=1Gi" for "--reserved-memory" flag: the reserved memory has incorrect format, '
            "expected numaNodeID:type=quantity[,type=quantity...], got memory=1Gi",
        ),
        (
            ["--reserved-memory=x:memory=1Gi"],
            'invalid argument "x:memory=1Gi" for "--reserved-memory" flag: failed to convert the NUMA node ID, '
            "exptected integer, got x",
        ),
        (
            ["--reserved-memory=0:cpu=1"],
            'invalid argument "0:cpu=1" for "--reserved-memory" flag: memory type conversion error, '
            'unknown type: "cpu"',
        ),
        (
            ["--reserved-memory=0:memory=x"],
            'invalid argument "0:memory=x" for "--reserved-memory" flag: failed to parse the quantatity, '
            "expected quantatity, got x",
        ),
        (
            ["--vmodule=a"],
            'invalid argument "a" for "--vmodule" flag: "a" does not have the pattern=N format',
        ),
    ],
)
def test_errors_are_worded_as_the_references(argv: list[str], message: str) -> None:
    assert _error(*argv) == message


def test_repeated_lists_and_maps_add_up_and_others_take_the_last() -> None:
    given = _read(
        "--cluster-dns=1.1.1.1",
        "--cluster-dns=2.2.2.2,3.3.3.3",
        "--kube-reserved=cpu=1",
        "--kube-reserved=memory=1Gi,cpu=2",
        "--manifest-url-header=a:1",
        "--manifest-url-header=a:2",
        "--reserved-memory=0:memory=1Gi",
        "--reserved-memory=1:memory=2Gi,hugepages-2Mi=4",
        "--feature-gates=A=true",
        "--feature-gates=B=false",
        "--node-labels=a=1",
        "--node-labels=b=2",
        "--register-with-taints=a=b:NoSchedule",
        "--register-with-taints=c:NoExecute,d:NoSchedule",
        "--port=1",
        "--port=2",
    )
    assert given.fields == {
        "clusterDNS": ["1.1.1.1", "2.2.2.2", "3.3.3.3"],
        "kubeReserved": {"cpu": "2", "memory": "1Gi"},
        "staticPodURLHeader": {"a": ["1", "2"]},
        "reservedMemory": [
            {"numaNode": 0, "limits": {"memory": "1Gi"}},
            {"numaNode": 1, "limits": {"memory": "2Gi", "hugepages-2Mi": "4"}},
        ],
        "featureGates": {"A": True, "B": False},
        "registerWithTaints": [
            {"key": "c", "value": "", "effect": "NoExecute"},
            {"key": "d", "value": "", "effect": "NoSchedule"},
        ],
        "port": 2,
    }
    assert given.flags.node_labels == {"a": "1", "b": "2"}
    assert given.gates == {"A": True, "B": False}


def test_lists_may_quote_commas() -> None:
    assert _read('--allowed-unsafe-sysctls="a,b",c').fields == {"allowedUnsafeSysctls": ["a,b", "c"]}
    assert _read("--allowed-unsafe-sysctls=").fields == {"allowedUnsafeSysctls": []}


@pytest.mark.parametrize(
    ("text", "number"), [("0x10", 16), ("0b11", 3), ("010", 8), ("0o10", 8), ("1_000", 1000), ("-3", -3), ("+3", 3)]
)
def test_integers_of_every_base(text: str, number: int) -> None:
    assert _read(f"--max-pods={text}").fields == {"maxPods": number}


def test_relative_paths_become_absolute(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    monkeypatch.chdir(tmp_path)
    flags = _read("--root-dir=r", "--config=c.yaml", "--cert-dir=/p").flags
    assert (flags.root_dir, flags.config, flags.cert_dir) == (f"{tmp_path}/r", f"{tmp_path}/c.yaml", "/p")


def test_deprecated_flags_warn_once_each() -> None:
    given = _read("--max-pods=1", "--max-pods=2", "--v=1", "--maximum-dead-containers=3", "--root-dir=/r")
    assert given.warnings == (
        f"Flag --max-pods has been deprecated, {IN_FILE}",
        "Flag --maximum-dead-containers has been deprecated, Use --eviction-hard or --eviction-soft instead. "
        "Will be removed in a future version.",
    )


def test_all_flags_with_a_field_are_deprecated_but_five() -> None:
    assert {flag.name for flag in FIELDS if not flag.deprecated} == NOT_DEPRECATED
    assert sorted(NOT_DEPRECATED) == ["fail-cgroupv1", "log-flush-frequency", "provider-id", "v", "vmodule"]


def test_the_node_suites_command_line_is_understood() -> None:
    given = _read(
        *("--kubeconfig", "/k", "--root-dir", "/var/lib/kubelet", "--v", "4", "--feature-gates", "EventedPLEG=true"),
        *("--config-dir", "/d", "--hostname-override", "n1", "--container-runtime-endpoint", "unix:///run/c.sock"),
        *("--config", "/c", "--runtime-cgroups=/containerd"),
    )
    assert given.flags.kubeconfig == "/k"
    assert given.flags.hostname_override == "n1"
    assert given.flags.runtime_cgroups == "/containerd"
    assert given.fields["logging.verbosity"] == 4
