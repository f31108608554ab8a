from __future__ import annotations

import re
from pathlib import Path

import pykubelet
from pykubelet.app.flags_table import ALL, CADVISOR, OWN
from pykubelet.base.model.version import Release
from pykubelet.config.combine import INERT_FLAGS, REFUSED_FLAGS, File, FlagInput, combine, without_effect
from pykubelet.config.gates import EITHER_WAY, FIXED, all_gates, settable_gates
from pykubelet.config.schema import field_paths, to_plain

DOCUMENT = Path(__file__).parents[2] / "docs/configuration.md"


LISTED = DOCUMENT.read_text().partition("## What has an effect")[2]


def test_every_flag_is_read_or_has_no_effect_upstream_or_is_refused() -> None:
    source = Path(pykubelet.__file__).parent
    skipped = ("flags_table.py", "zpages.py")
    text = "".join(path.read_text() for path in source.rglob("*.py") if path.name not in skipped)
    for flag in (*OWN, *CADVISOR):
        is_read = flag.attribute and re.search(rf"flags(\(\))?\.{flag.attribute}\b", text)
        assert bool(is_read) is (flag.name not in INERT_FLAGS), flag.name
    assert set(ALL) >= INERT_FLAGS | REFUSED_FLAGS


def is_named(path: str, text: str) -> bool:
    """A field, or one that has it below itself."""
    parts = path.split(".")
    return any(f"`{'.'.join(parts[:end])}`" in text for end in range(1, len(parts) + 1))


def test_the_documentation_lists_the_fields_and_flags_without_effect() -> None:
    listed = LISTED.partition("These have their effect:")[0]
    inert = without_effect(field_paths(), ())
    assert {path for path in field_paths() if is_named(path, listed)} == set(inert)
    assert {name for name in INERT_FLAGS | REFUSED_FLAGS if f"`--{name}`" not in listed} == set()


def test_the_documentation_names_every_field_and_flag_with_an_effect() -> None:
    listed = LISTED.partition("These have their effect:")[2]
    inert = without_effect(field_paths(), ())
    assert [path for path in field_paths() if path not in inert and not is_named(path, listed)] == []
    flags = {flag.name for flag in (*OWN, *CADVISOR)} - INERT_FLAGS - REFUSED_FLAGS
    missing = [name for name in sorted(flags) if f"`--{name}`" not in listed]
    assert [name for name in missing if not name.startswith("image-credential-provider-")] == []


def test_every_gate_is_asked_or_keeps_its_default_or_makes_no_difference() -> None:
    source = Path(pykubelet.__file__).parent
    text = "".join(path.read_text() for path in source.rglob("*.py") if path.name not in ("gates.py", "gate_table.py"))
    asked = {gate for gate in all_gates() if f'"{gate}"' in text}
    settable = frozenset[str]().union(*(settable_gates(release) for release in Release))
    assert sorted(settable - asked - FIXED.keys() - EITHER_WAY) == []
    assert settable >= FIXED.keys() | EITHER_WAY and FIXED.keys().isdisjoint(EITHER_WAY)
    always = [name for name, fixed in FIXED.items() if fixed.since is min(Release)]
    assert re.findall(rf'enabled\("({"|".join((*always, *EITHER_WAY))})"\)', text) == []


def test_the_documentation_explains_the_gates_that_choose_nothing() -> None:
    listed = DOCUMENT.read_text().partition("## Feature gates")[2]
    assert [name for name in EITHER_WAY if f"`{name}`" not in listed] == []


def test_fields_and_flags_without_effect() -> None:
    fields = ["crashLoopBackOff.maxContainerRestartPeriod", "hairpinMode", "logging.verbosity"]
    assert without_effect(fields, ["root-dir", "storage-driver-db"]) == ("--storage-driver-db", "hairpinMode")


def test_a_configuration_as_go_programs_write_it_is_taken() -> None:
    """Zero durations, empty maps and empty strings for what was not set."""
    data = b"""{"kind":"KubeletConfiguration","apiVersion":"kubelet.config.k8s.io/v1beta1",
    "syncFrequency":"0s","fileCheckFrequency":"10s","httpCheckFrequency":"0s",
    "authentication":{"x509":{},"webhook":{"enabled":false,"cacheTTL":"0s"},"anonymous":{"enabled":true}},
    "authorization":{"mode":"AlwaysAllow","webhook":{"cacheAuthorizedTTL":"0s","cacheUnauthorizedTTL":"0s"}},
    "streamingConnectionIdleTimeout":"0s","nodeStatusUpdateFrequency":"0s","nodeStatusReportFrequency":"0s",
    "imageMinimumGCAge":"0s","imageMaximumGCAge":"0s","volumeStatsAggPeriod":"10s","cgroupRoot":"/",
    "cgroupDriver":"cgroupfs","cpuManagerReconcilePeriod":"0s","runtimeRequestTimeout":"0s",
    "evictionHard":{"memory.available":"250Mi"},"evictionPressureTransitionPeriod":"30s","memorySwap":{},
    "logging":{"flushFrequency":0,"verbosity":0,"options":{"text":{"infoBufferSize":"0"},"json":{"infoBufferSize":"0"}}},
    "shutdownGracePeriod":"0s","shutdownGracePeriodCriticalPods":"0s","crashLoopBackOff":{},
    "containerRuntimeEndpoint":"","failCgroupV1":false,"podCIDR":"10.100.0.0/24","serializeImagePulls":false}"""
    config = combine(File("/k", data), (), FlagInput(), None).config
    plain = to_plain(config)
    assert plain["syncFrequency"] == "1m0s"
    assert plain["logging"]["flushFrequency"] == "5s"
    assert plain["authentication"]["webhook"]["cacheTTL"] == "2m0s"
    assert plain["nodeStatusReportFrequency"] == "5m0s"
    assert plain["containerRuntimeEndpoint"] == "unix:///run/containerd/containerd.sock"
    assert plain["failCgroupV1"] is False
