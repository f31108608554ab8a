"""Computed defaults: those that depend on other fields, on feature gates, or on the directory of the file.

Pure, on plain documents (see `schema.py`). The plain defaults are in `kubelet.py`.
"""

from __future__ import annotations

import posixpath
from collections.abc import Mapping
from typing import Any

from pykubelet.base.kit.durations import parse_duration
from pykubelet.config.eviction import with_default_hard
from pykubelet.config.gates import ALL_ALPHA, ALL_BETA, FeatureGates, known_gates
from pykubelet.config.schema import complete, drop_path, get_path, set_path

MAX_CRASH_BACKOFF = "5m0s"
RELATIVE_PATHS = (
    "staticPodPath",
    "authentication.x509.clientCAFile",
    "tlsCertFile",
    "tlsPrivateKeyFile",
    "resolvConf",
    "volumePluginDir",
    "podLogsDir",
)
# The defaults of the flags from before there were configuration files; they apply only without --config.
LEGACY: Mapping[str, Any] = {
    "authentication.anonymous.enabled": True,
    "authentication.webhook.enabled": False,
    "authorization.mode": "AlwaysAllow",
    "readOnlyPort": 10255,
}


def with_defaults(given: dict[str, Any], flag_gates: Mapping[str, bool]) -> dict[str, Any]:
    """Complete a checked document. `flag_gates`: gates of the command line, which override those of the document."""
    full = complete(given)
    gates = {**full["featureGates"], **flag_gates}
    known = FeatureGates(
        {name: value for name, value in gates.items() if name in (ALL_ALPHA, ALL_BETA, *known_gates())}
    )
    update = given.get("nodeStatusUpdateFrequency")
    if _unset(given.get("nodeStatusReportFrequency")) and not _unset(update):
        full["nodeStatusReportFrequency"] = update
    if given.get("serializeImagePulls") is None:
        full["serializeImagePulls"] = (given.get("maxParallelImagePulls") or 0) < 2
    crash = "crashLoopBackOff.maxContainerRestartPeriod"
    if get_path(given, crash) is None and known.enabled("KubeletCrashLoopBackOffMax"):
        set_path(full, crash, MAX_CRASH_BACKOFF)
    if not given.get("imagePullCredentialsVerificationPolicy") and not known.enabled("KubeletEnsureSecretPulledImages"):
        set_path(full, "imagePullCredentialsVerificationPolicy", "")
    full["podPidsLimit"] = max(-1, full["podPidsLimit"])
    if given.get("evictionHard") is None:
        drop_path(full, "evictionHard")
    return full


def _unset(text: Any) -> bool:
    return text is None or parse_duration(text) == 0


def for_file(full: dict[str, Any], directory: str) -> dict[str, Any]:
    """Apply what holds only for the `--config` file: default eviction thresholds, and paths relative to its `directory`."""
    done = {**full}
    merge = bool(full.get("mergeDefaultEvictionSettings"))
    done["evictionHard"] = with_default_hard(full.get("evictionHard"), merge)
    done["authentication"] = {**full["authentication"], "x509": dict(full["authentication"]["x509"])}
    for path in RELATIVE_PATHS:
        text = get_path(done, path)
        if text and not posixpath.isabs(text):
            set_path(done, path, posixpath.normpath(posixpath.join(directory, text)))
    return done


def without_file(flag_gates: Mapping[str, bool]) -> dict[str, Any]:
    """The complete configuration without `--config`: the defaults, overridden by the legacy ones."""
    full = with_defaults({}, flag_gates)
    for path, value in LEGACY.items():
        set_path(full, path, value)
    return full


def merge_patch(base: Any, patch: Any) -> Any:
    """JSON Merge Patch (RFC 7386): maps merge by key, null deletes, everything else replaces."""
    if not isinstance(patch, dict):
        return patch
    merged = dict(base) if isinstance(base, dict) else {}
    for key, value in patch.items():
        if value is None:
            merged.pop(key, None)
        else:
            merged[key] = merge_patch(merged.get(key), value)
    return merged
