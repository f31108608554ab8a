"""The program as users start it: a real process, its output and its exit code."""

from __future__ import annotations

import ast
import asyncio
import inspect
import os
import re
import subprocess
import sys
import textwrap
from collections.abc import Mapping
from pathlib import Path

import pytest
from support.logs import logging_restored

from pykubelet.app.flags import parse_command_line
from pykubelet.app.load import load, read_host, swap_on
from pykubelet.app.run import flush_regularly
from pykubelet.app.wiring import Agent
from pykubelet.app.wiring_server import metrics_inputs
from pykubelet.base.kit.log import Log, set_up_logging
from pykubelet.base.model import version
from pykubelet.config.errors import ConfigError
from pykubelet.serve.explain.documents import _placement_recording, recording_document

HEADER = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n"
# What kubeadm matches the whole trimmed output of `kubelet --version` against.
KUBEADM = re.compile(r"^\s*Kubernetes v((0|[1-9][0-9]*)\.(0|[1-9][0-9]*)\.(0|[1-9][0-9]*)([-0-9a-zA-Z_\.+]*)?)\s*$")
#: What `Agent.start` imports after it has opened the ports.
IMPORT_LATE = "from pykubelet.app.wiring import LATE; [__import__(name) for name in LATE];"
#: The most modules of the agent that are imported before the health port answers, and some packages of which it needs little.
MOST_EARLY = 340
LATE_PACKAGES = (
    "act.pods.",
    "act.runtime.lifecycle.",
    "desired.roster.loop",
    "observe.probes.",
    "provide.volumes.",
    "provide.placement.",
)
SEMVER = re.compile(r"1\.37\.2\+[0-9A-Za-z-]+(\.[0-9A-Za-z-]+)*")


def _run(*argv: str, cwd: Path | None = None, env: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "pykubelet.app.cli", *argv],
        capture_output=True,
        text=True,
        cwd=cwd,
        env=env,
        timeout=30,
        check=False,
    )


def _host(tmp_path: Path, swaps: str = "", v2: bool = True) -> str:
    """A root directory with the facts of a machine."""
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/swaps").write_text("Filename\tType\tSize\tUsed\tPriority\n" + swaps)
    (tmp_path / "sys/devices/system/cpu").mkdir(parents=True)
    (tmp_path / "sys/devices/system/cpu/online").write_text("0-1\n")
    (tmp_path / "sys/fs/cgroup").mkdir(parents=True)
    if v2:
        (tmp_path / "sys/fs/cgroup/cgroup.controllers").write_text("cpu memory\n")
    return str(tmp_path)


def test_the_version_is_one_line_that_kubeadm_takes() -> None:
    done = _run("--version")
    assert (done.returncode, done.stderr) == (0, "")
    match = KUBEADM.match(done.stdout.strip())
    assert match is not None and SEMVER.fullmatch(match[1])
    assert done.stdout.count("\n") == 1
    assert done.stdout.split()[1] == version.FULL


def test_other_forms_of_the_version() -> None:
    raw = _run("--version=raw")
    assert raw.returncode == 0
    assert raw.stdout.startswith('version.Info{Major:"1", Minor:"37", EmulationMajor:"", ')
    assert f'GitVersion:"{version.FULL}"' in raw.stdout
    assert _run(f"--version={version.KUBERNETES}-custom").stdout == f"Kubernetes {version.KUBERNETES}-custom\n"
    assert _run("--version", "--emulated-version=1.36").stdout.startswith("Kubernetes v1.36.")
    given = {**os.environ, "PYKUBELET_EMULATED_VERSION": "1.36"}
    assert _run("--version", env=given).stdout.startswith("Kubernetes v1.36."), "as kubeadm asks"
    assert _run("--version", "--emulated-version=1.37", env=given).stdout.startswith("Kubernetes v1.37.")
    wrong = _run("--emulated-version=1.38", "--root-dir=/nowhere")
    assert '--emulated-version "1.38" is not a release that this agent can be: must be 1.36 or 1.37' in wrong.stderr
    emulated = _run("--version=raw", "--emulated-version=kube=1.36").stdout
    assert 'Minor:"37", EmulationMajor:"1", EmulationMinor:"36"' in emulated and 'GitVersion:"v1.37.' in emulated
    wrong = _run("--version=v1.0.0")
    assert wrong.returncode == 1
    assert wrong.stderr.startswith(
        'Error: failed to parse kubelet flag: invalid argument "v1.0.0" for "--version" flag'
    )


def test_a_node_that_stands_alone_starts_without_what_it_does_not_use() -> None:
    heavy = (
        {"aiohttp", "grpc", "cryptography", "prometheus_client", "http.client", "email", "urllib.request", "argparse"}
        | {
            "importlib.metadata",
            "gzip",
            "bz2",
            "lzma",
            "shutil",
            "html",
            "statistics",
            "yaml",
            "h2.connection",
            "websockets",
        }
        | {
            "pykubelet.app.wiring_cluster",
            "pykubelet.edges.kubeapi.client",
            "pykubelet.app.ask",
            "pykubelet.edges.otlp",
        }
    )
    code = (
        f"import sys; import pykubelet.app.load, pykubelet.app.run; {IMPORT_LATE} heavy = {heavy!r} & set(sys.modules);"
        "sys.exit(str(heavy) if heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_health_port_does_not_wait_for_what_acts_on_pods() -> None:
    code = (
        "import sys, pykubelet.app.load, pykubelet.app.run;"
        "print(*(name for name in sys.modules if name.startswith('pykubelet.')))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=True)
    early = [name.removeprefix("pykubelet.") for name in done.stdout.split()]
    assert [name for name in early if name.startswith(LATE_PACKAGES)] == []
    assert len(early) <= MOST_EARLY


def test_what_is_imported_late_is_imported_in_a_thread() -> None:
    functions = (Agent.start, metrics_inputs, recording_document, _placement_recording)
    trees = (ast.parse(textwrap.dedent(inspect.getsource(function))) for function in functions)
    named = {node.module for tree in trees for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    code = f"import sys, pykubelet.app.run; {IMPORT_LATE} print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=True)
    assert len(named) == 7 and named <= set(done.stdout.split())


def test_no_value_is_a_dataclass() -> None:
    """Each costs a start a millisecond; the one that is left needs a field that does not count (config/schema)."""
    code = (
        f"import dataclasses, sys, pykubelet.app.run; {IMPORT_LATE}"
        "found = [name for module in list(sys.modules.values()) if module.__name__.startswith('pykubelet.')"
        " for name, each in vars(module).items() if isinstance(each, type) and dataclasses.is_dataclass(each)];"
        "print(*sorted(set(found)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=False)
    assert (done.stdout, done.stderr) == ("Object\n", "")


def test_help_names_every_flag_and_imports_nothing_heavy() -> None:
    code = (
        "import sys; from pykubelet.app.cli import main; main(['--help']); main(['--version']);"
        "heavy = {'msgspec', 'yaml', 'grpc', 'aiohttp', 'asyncio', 'argparse'} & set(sys.modules);"
        "sys.exit(str(heavy) if heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    for name in (
        "--config-dir",
        "--pod-manifest-path",
        "--housekeeping-interval",
        "-v, --v",
        "-h, --help",
        "explain POD",
    ):
        assert name in done.stdout


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--nope"], "failed to parse kubelet flag: unknown flag: --nope"),
        (["run"], "unknown command run"),
        (["--v=4", "start", "now"], "unknown command start"),
        (
            ["--max-pods=x"],
            'failed to parse kubelet flag: invalid argument "x" for "--max-pods" flag: "x" is not a whole number',
        ),
        (
            ["--config=/nowhere/k.yaml"],
            "failed to load kubelet config file, path: /nowhere/k.yaml, error: no such file or directory",
        ),
        (["--config=/"], "failed to load kubelet config file, path: /, error: is a directory"),
        (
            ["--config-dir=/nowhere"],
            "failed to walk through kubelet dropin directory /nowhere, error: no such file or directory",
        ),
        (["--feature-gates=Nope=true"], "unrecognized feature gate: Nope (set by --feature-gates)"),
        (
            ["--fail-cgroupv1=false", "--port=0"],
            "invalid configuration: port (--port) 0 must be between 1 and 65535, inclusive",
        ),
        (
            ["--fail-cgroupv1=false", "--exit-on-lock-contention"],
            "cannot exit on lock file contention: no lock file specified (--lock-file)",
        ),
    ],
)
def test_a_wrong_command_line_ends_with_one_and_gives_the_reason(argv: list[str], message: str) -> None:
    done = _run(*argv)
    assert done.returncode == 1
    assert f"Error: {message}\n" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("body", "lines"),
    [
        (
            "maxPods: many\nfailSwapOn: 1\nmaxPod: 5\nmaxPod: 6\n",
            [
                '{file}: maxPods: invalid value "many": must be an integer from -2147483648 to 2147483647',
                "{file}: failSwapOn: invalid value 1: must be true or false",
                '{file}: maxPod: unknown field, ignored; did you mean "maxPods"?',
                "{file}: maxPod: duplicate field (line 6): the last value counts",
            ],
        ),
        (
            "failCgroupV1: false\nmaxPods: -5\n",
            ["invalid configuration: maxPods (--max-pods) -5 must not be a negative number (set in {file})"],
        ),
        ("a: [\n", ["{file}: not valid YAML: did not find expected node content (line 4)"]),
    ],
)
def test_a_wrong_file_ends_with_one_and_names_everything(tmp_path: Path, body: str, lines: list[str]) -> None:
    file = tmp_path / "k.yaml"
    file.write_text(HEADER + body)
    root = tmp_path / "root"
    done = _run("--config", str(file), "--root-dir", str(root))
    assert done.returncode == 1
    assert done.stderr.splitlines() == ["Error: " + line.format(file=file) for line in lines]
    assert not root.exists()


def test_a_wrong_drop_in_ends_with_one(tmp_path: Path) -> None:
    (tmp_path / "10.conf").write_text(HEADER + "port: 5\nport: 6\n")
    done = _run("--config-dir", str(tmp_path))
    assert done.returncode == 1
    assert done.stderr == f"Error: {tmp_path}/10.conf: port: duplicate field: must be given once (line 4)\n"


def test_drop_ins_are_taken_in_lexical_order_from_subdirectories_too(tmp_path: Path) -> None:
    host = _host(tmp_path)
    directory = tmp_path / "conf.d"
    (directory / "20-sub").mkdir(parents=True)
    (directory / "10-a.conf").write_text(HEADER + "maxPods: 10\nport: 10\n")
    (directory / "20-sub/zz.conf").write_text(HEADER + "maxPods: 20\nreadOnlyPort: 20\n")
    (directory / "30-b.conf").write_text(HEADER + "maxPods: 30\n")
    (directory / "40.yaml").write_text("not read")
    (directory / "50.conf.bak").write_text("not read")
    (tmp_path / "k.yaml").write_text(HEADER + "maxPods: 1\n")
    settings = load(parse_command_line(["--config", f"{tmp_path}/k.yaml", "--config-dir", str(directory)]), host)
    assert (settings.config.maxPods, settings.config.port, settings.config.readOnlyPort) == (30, 10, 20)
    assert [os.path.basename(file) for file in settings.files] == ["k.yaml", "10-a.conf", "zz.conf", "30-b.conf"]
    assert settings.warnings == (f"Skipped files without the suffix .conf in {directory}: 40.yaml, 50.conf.bak",)


def test_an_unreadable_drop_in_is_fatal(tmp_path: Path) -> None:
    (tmp_path / "a.conf").symlink_to(tmp_path / "gone")
    with pytest.raises(ConfigError, match=r"a\.conf, error: no such file or directory"):
        load(parse_command_line(["--config-dir", str(tmp_path)]))


def test_flags_beat_drop_ins_beat_the_file(tmp_path: Path) -> None:
    host = _host(tmp_path)
    (tmp_path / "k.yaml").write_text(HEADER + "maxPods: 1\nport: 1\naddress: 1.1.1.1\n")
    (tmp_path / "d").mkdir()
    (tmp_path / "d/a.conf").write_text(HEADER + "maxPods: 2\nport: 2\n")
    line = parse_command_line(["--max-pods=3", f"--config={tmp_path}/k.yaml", f"--config-dir={tmp_path}/d"])
    config = load(line, host).config
    assert (config.maxPods, config.port, config.address) == (3, 2, "1.1.1.1")


def test_a_machine_with_swap_or_old_cgroups_is_refused(tmp_path: Path) -> None:
    host = _host(tmp_path, swaps="/dev/sda2 partition 100 0 -2\n", v2=False)
    with pytest.raises(ConfigError) as error:
        load(parse_command_line([]), host)
    assert error.value.problems == (
        "kubelet is configured to not run on a host using cgroup v1. "
        "cgroup v1 support is unsupported and will be removed in a future release",
        "running with swap on is not supported, please disable swap or set --fail-swap-on flag to false",
    )
    assert load(parse_command_line(["--fail-swap-on=false", "--fail-cgroupv1=false"]), host).config.failSwapOn is False


def test_the_facts_of_a_machine_without_any_are_harmless(tmp_path: Path) -> None:
    facts = read_host(str(tmp_path))
    assert (facts.cgroup_v2, facts.online_cpus, facts.swap_on) == (False, frozenset(), False)


def test_the_header_of_the_list_of_swap_areas_is_no_area() -> None:
    assert not swap_on("Filename Type Size Used Priority\n")
    assert not swap_on("")
    assert swap_on("Filename Type Size Used Priority\n/swap file 1 0 -2\n")


def test_run_once_by_flag_and_by_file(tmp_path: Path) -> None:
    host = _host(tmp_path)
    assert load(parse_command_line(["--runonce"]), host).run_once
    (tmp_path / "k.yaml").write_text(HEADER + "runOnce: true\n")
    assert load(parse_command_line([f"--config={tmp_path}/k.yaml"]), host).run_once


@pytest.mark.parametrize("wrong", ["providers", "kubeconfig"])
def test_what_can_be_known_to_be_wrong_is_reported_before_anything_is_touched(tmp_path: Path, wrong: str) -> None:
    bad = tmp_path / "bad.yaml"
    bad.write_text("kind: Nonsense\n")
    flags = {
        "providers": [f"--image-credential-provider-config={bad}", f"--image-credential-provider-bin-dir={tmp_path}"],
        "kubeconfig": [f"--kubeconfig={bad}"],
    }
    root = tmp_path / "root"
    done = _run(
        "--fail-swap-on=false", "--fail-cgroupv1=false", f"--root-dir={root}", f"--cert-dir={root}/pki", *flags[wrong]
    )
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("Error: ") and str(bad) in done.stderr
    assert not root.exists()


def test_what_has_no_effect_is_named_once_at_start(tmp_path: Path) -> None:
    (tmp_path / "k.yaml").write_text(
        HEADER + "failSwapOn: false\nfailCgroupV1: false\nhairpinMode: none\nsyncFrequency: 2m\ncgroupRoot: /x\n"
        "featureGates: {EventedPLEG: true, ContainerStopSignals: false, HostnameOverride: true}\n"
    )
    # the lock cannot be had: the program ends after it has printed all problems, and before it touches anything
    done = _run(f"--config={tmp_path}/k.yaml", f"--lock-file={tmp_path}/nowhere/lock", f"--root-dir={tmp_path}/root")
    assert done.returncode == 1 and "nowhere/lock" in done.stderr
    [inert] = [line for line in done.stderr.splitlines() if "no effect in the Kubernetes kubelet" in line]
    assert inert.endswith('fields="hairpinMode"')
    [leaving] = [line for line in done.stderr.splitlines() if "setting GA feature gate" in line]
    assert 'featureGate="HostnameOverride" value=true' in leaving
    assert [line for line in done.stderr.splitlines() if line.startswith("W")] == []


@pytest.mark.parametrize("release", ["1.36", "1.37"])
def test_the_effective_configuration_is_logged_from_1_37_on(tmp_path: Path, release: str) -> None:
    (tmp_path / "k.yaml").write_text(
        HEADER + "failSwapOn: false\nfailCgroupV1: false\nstaticPodURLHeader: {Token: [secret]}\n"
    )
    done = _run(
        f"--config={tmp_path}/k.yaml",
        "--max-pods=7",
        f"--emulated-version={release}",
        f"--lock-file={tmp_path}/nowhere/lock",
        f"--root-dir={tmp_path}/root",
    )
    lines = [line for line in done.stderr.splitlines() if "the effective configuration" in line]
    assert len(lines) == (1 if release == "1.37" else 0) and "secret" not in done.stderr
    assert all(r"\"maxPods\":7" in line and "Token" in line for line in lines), lines


def test_a_node_made_by_kubeadm_starts_without_a_warning(tmp_path: Path) -> None:
    (tmp_path / "patches").mkdir()
    # the runtime's address as kubeadm writes it for one node; the last fields suit the machine of this test
    (tmp_path / "patches/10.conf").write_text(
        f"{HEADER}containerRuntimeEndpoint: unix:///run/containerd/containerd.sock\nfailSwapOn: false\nfailCgroupV1: false\n"
    )
    # the flags of kubeadm's 10-kubeadm.conf; without its lock the program ends before it touches anything
    done = _run(
        f"--bootstrap-kubeconfig={tmp_path}/bootstrap-kubelet.conf",
        f"--kubeconfig={tmp_path}/kubelet.conf",
        f"--config={Path(__file__).parent}/kubeadm-config.yaml",
        f"--config-dir={tmp_path}/patches",
        f"--lock-file={tmp_path}/nowhere/lock",
        f"--root-dir={tmp_path}/root",
    )
    assert done.returncode == 1
    [started, configured, stopped] = done.stderr.splitlines()
    assert started.startswith("I") and '"starting"' in started and configured.startswith("I")
    assert stopped.startswith("Error: ") and "nowhere/lock" in stopped


@pytest.mark.looptime
async def test_messages_in_the_buffer_are_written_at_every_flush(capsys: pytest.CaptureFixture[str]) -> None:
    with logging_restored():
        set_up_logging(2, split_stream=True, buffer_bytes=1 << 20)
        Log("test").info("kept")
        flushing = asyncio.get_running_loop().create_task(flush_regularly(5.0))
        await asyncio.sleep(4.9)
        assert capsys.readouterr().out == ""
        await asyncio.sleep(0.2)
        assert '"kept"' in capsys.readouterr().out
        flushing.cancel()


def test_patterns_of_vmodule_that_name_nothing_are_reported(tmp_path: Path) -> None:
    flags = (f"--lock-file={tmp_path}/nowhere/lock", "--fail-swap-on=false", "--fail-cgroupv1=false")
    done = _run("--vmodule=gone=3,loop=4,act/pods/*=5", *flags)
    assert done.returncode == 1 and "nowhere/lock" in done.stderr
    [line] = [line for line in done.stderr.splitlines() if "names no module" in line]
    assert line.endswith('pattern="gone"')
