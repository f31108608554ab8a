"""Combines defaults, file, drop-ins and flags into one `Settings`. Pure: takes bytes and values, returns a value.

Fields that KubeletConfiguration does not have are remarks, and so are given settings without effect, which the agent logs once at start:
such fields are marked in `kubelet.py`, gates in `gates.py`, and flags are listed here.

Some defaults are computed: they depend on other fields, on feature gates, or on the directory of the file. The plain ones are in
`kubelet.py`.

Precedence, high to low: flag, last drop-in, earlier drop-in, file, default. All problems are reported at once, each with the
file or flag that caused it. Unknown fields, fields given twice in the main file, and further documents are only remarked, as
in the reference, which starts with them.
"""

from __future__ import annotations

import posixpath
from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import islice
from typing import Any, NamedTuple

from pykubelet.base.api.document import duplicate_error
from pykubelet.base.kit.durations import parse_duration
from pykubelet.base.kit.text import nearest
from pykubelet.base.kit.values import Value, field
from pykubelet.base.model.remarks import Remark, document_remarks, unknown_field
from pykubelet.base.model.version import CURRENT, Release, find_release
from pykubelet.config.behaviors import behavior_of
from pykubelet.config.errors import ConfigError, ConfigProblem
from pykubelet.config.eviction import with_default_hard
from pykubelet.config.flag_values import validate_flags
from pykubelet.config.gates import ALL_ALPHA, ALL_BETA, FeatureGates, known_gates
from pykubelet.config.kubelet import API_VERSION, KIND
from pykubelet.config.schema import (
    ListOf,
    MapOf,
    Node,
    Object,
    build,
    check,
    complete,
    config_shape,
    drop_path,
    field_paths,
    get_path,
    given_paths,
    inert_paths,
    set_path,
)
from pykubelet.config.settings import Flags, Settings
from pykubelet.config.text import parse_first_document
from pykubelet.config.validate import validate
from pykubelet.config.validate_host import HostFacts, validate_host
from pykubelet.config.validate_server import is_ip, unavailable_curves

GATES = "featureGates"
#: Unknown fields that are remarked of one file.
MAX_REMARKS = 100
#: Periods that must not be 0, because a loop would run without a pause. A flag of 0 means the default, as in files.
NEVER_ZERO = frozenset(
    {"fileCheckFrequency", "httpCheckFrequency", "nodeStatusUpdateFrequency", "runtimeRequestTimeout", "syncFrequency"}
)


class FlagInput(Value):
    """The values given on the command line. `fields`: plain values by field path.

    `names`: the name of every given flag, by field path or, for a flag without a field, by `--name`.
    """

    fields: Mapping[str, Any] = field(default_factory=dict)
    names: Mapping[str, str] = field(default_factory=dict)
    flags: Flags = field(default_factory=Flags)
    warnings: tuple[str, ...] = ()

    @property
    def gates(self) -> Mapping[str, bool]:
        """The feature gates given on the command line, by name."""
        gates: Mapping[str, bool] = self.fields.get(GATES, {})
        return gates

    @property
    def release(self) -> Release:
        """The release that the agent is to be; a wrong `--emulated-version` is a problem of `validate_flags`."""
        return find_release(self.flags.emulated_version) or CURRENT


class File(Value):
    """A configuration file: its absolute path and its bytes."""

    path: str
    data: bytes


def combine(file: File | None, drop_ins: tuple[File, ...], given: FlagInput, host: HostFacts | None) -> Settings:
    """Build the validated settings. `drop_ins`: in the order in which they apply. `host` None: host rules are not checked.

    Raises ConfigError with every problem found.
    """
    documents, remarks = _read(file, drop_ins)
    config = build(_merged(file, [document for _, document in documents], given))
    gates = FeatureGates(config.featureGates, given.release)
    problems = validate(config, gates, extensions=bool(given.flags.extension)) + validate_flags(given.flags)
    if host is not None:
        problems += validate_host(config, host, given.flags)
    sources = _sources(documents, given)
    if problems:
        raise ConfigError(*(_with_source(problem, sources) for problem in problems), remarks=remarks)
    fields = [path for path in sources if not path.startswith("--")]
    flags = [path[2:] for path in given.names if path.startswith("--")]
    bad_dns = tuple(f"Invalid clusterDNS IP: {address}" for address in config.clusterDNS if not is_ip(address))
    return Settings(
        config=config,
        flags=given.flags,
        gates=gates,
        inert=without_effect(fields, flags),
        warnings=given.warnings + bad_dns + unavailable_curves(config) + unmoved_gates(gates),
        files=tuple(path for path, _ in documents),
        remarks=remarks,
    )


def _merged(file: File | None, documents: list[dict[str, Any]], given: FlagInput) -> dict[str, Any]:
    """The complete plain configuration. `documents`: the file's first, if there is a file, then those of the drop-ins."""
    if file is None:
        full = without_file(given.gates, given.release)
    else:
        full = for_file(with_defaults(documents.pop(0), given.gates, given.release), posixpath.dirname(file.path))
    for document in documents:
        full = with_defaults(merge_patch(full, document), given.gates, given.release)
    for path, value in given.fields.items():
        if path == GATES:
            value = {**full.get(GATES, {}), **value}
        elif path in NEVER_ZERO and parse_duration(value) == 0:
            value = complete({})[path]
        set_path(full, path, value)
    return full


def _read(main: File | None, drop_ins: tuple[File, ...]) -> tuple[list[tuple[str, dict[str, Any]]], tuple[Remark, ...]]:
    """Read and check the document of each file. Raises ConfigError with the problems of all files."""
    documents: list[tuple[str, dict[str, Any]]] = []
    remarks: list[Remark] = []
    wrong: list[str] = []
    for file in drop_ins if main is None else (main, *drop_ins):
        try:
            document, found = read_file(file, is_patch=file is not main)
        except ConfigError as error:
            wrong += error.problems
            remarks += error.remarks
        else:
            documents.append((file.path, document))
            remarks += found
    if wrong:
        raise ConfigError(*wrong, remarks=tuple(remarks))
    return documents, tuple(remarks)


def read_file(file: File, is_patch: bool = False) -> tuple[dict[str, Any], tuple[Remark, ...]]:
    """Read the document of one file, without `apiVersion` and `kind`, and the remarks about it. `is_patch`: it is a drop-in.

    Raises ConfigError that names the file, the field path, the value and what is allowed.
    """
    document, written = parse_first_document(file.data, file.path)
    problems = []
    if is_patch:  # the reference refuses duplicates in a drop-in only
        problems += [str(duplicate_error(place)) for place in written.duplicates]
        written = written._replace(duplicates=())
    for key, wanted in (("apiVersion", API_VERSION), ("kind", KIND)):
        value = document.pop(key, None)
        if value != wanted:
            shown = "missing" if value is None else f'invalid value "{value}"'
            problems.append(f'{key}: {shown}: must be "{wanted}"')
    problems += [problem.text for problem in check(document, is_patch=is_patch)]
    unknown = islice(unknown_fields(document), MAX_REMARKS)
    remarks = (
        *(unknown_field(file.path, *setting) for setting in unknown),
        *document_remarks(file.path, written),
    )
    if problems:
        raise ConfigError(*(f"{file.path}: {text}" for text in problems), remarks=remarks)
    return document, remarks


def _sources(documents: list[tuple[str, dict[str, Any]]], given: FlagInput) -> dict[str, str]:
    """The last file or flag that gave a value, by field path."""
    sources: dict[str, str] = {}
    for file, document in documents:
        sources.update(dict.fromkeys(given_paths(document), file))
    sources.update({path: f"--{name}" for path, name in given.names.items()})
    return sources


def _with_source(problem: ConfigProblem, sources: Mapping[str, str]) -> str:
    """The problem's text, with the file or flag that gave the value, if one did."""
    source = None if problem.field.startswith("--") else sources.get(problem.field)
    if source is None or (source.startswith("--") and source in problem.text):
        return problem.text
    return f"{problem.text} (set {'by' if source.startswith('--') else 'in'} {source})"


#: Flags without effect in the Kubernetes kubelet. They configure parts of cAdvisor that it does not use.
INERT_FLAGS = frozenset(
    {
        "event-storage-age-limit",
        "event-storage-event-limit",
        "storage-driver-buffer-duration",
        "storage-driver-db",
        "storage-driver-host",
        "storage-driver-password",
        "storage-driver-secure",
        "storage-driver-table",
        "storage-driver-user",
    }
)
#: Flags that are refused wherever the Kubernetes kubelet gives them an effect (`flag_values.py`, `validate_host.py`, `load.py`).
REFUSED_FLAGS = frozenset(
    {"application-metrics-count-limit", "container-hints", "enable-load-reader", "experimental-mounter-path"}
)


def without_effect(fields: Iterable[str], flags: Iterable[str]) -> tuple[str, ...]:
    """The given field paths and flag names that have no effect, here and in the Kubernetes kubelet; flags with their dashes."""
    inert = inert_paths() & set(fields)
    return tuple(sorted(inert.union(f"--{name}" for name in flags if name in INERT_FLAGS | REFUSED_FLAGS)))


def unmoved_gates(gates: FeatureGates) -> tuple[str, ...]:
    """The warning about gates that `AllAlpha` and `AllBeta` do not change here; empty for none."""
    names = ", ".join(gates.unmoved())
    return (f"AllAlpha and AllBeta do not change these feature gates here: {names}",) if names else ()


class UnknownSetting(NamedTuple):
    """An unknown field. `near`: the path of the field that was probably meant; `known`: the fields beside it."""

    path: str
    near: str | None
    known: Collection[str]


def unknown_fields(document: dict[str, Any]) -> Iterator[UnknownSetting]:
    """The unknown fields of a document without `apiVersion` and `kind`, in its order. Values of wrong types have none."""
    return _below(config_shape(), document, "")


def _below(node: Node, value: Any, path: str) -> Iterator[UnknownSetting]:
    if isinstance(node, ListOf) and isinstance(value, list):
        for index, item in enumerate(value):
            yield from _below(node.item, item, f"{path}[{index}]")
    elif isinstance(node, MapOf) and isinstance(value, dict):
        for key, item in value.items():
            yield from _below(node.value, item, f"{path}[{key}]")
    elif isinstance(node, Object) and isinstance(value, dict):
        for key, item in value.items():
            here = f"{path}.{key}" if path else key
            if key in node.fields:
                yield from _below(node.fields[key].node, item, here)
            else:
                yield UnknownSetting(here, _near(node, key, path), node.fields)


def _near(node: Object, key: str, path: str) -> str | None:
    """The most similar field beside it, or else anywhere."""
    if beside := nearest(key, node.fields):
        return f"{path}.{beside}" if path else beside
    everywhere = {field_path.rsplit(".", 1)[-1]: field_path for field_path in field_paths()}
    found = nearest(key, everywhere, cutoff=0.75)
    return everywhere[found] if found else None


# Computed defaults, on plain documents (see `schema.py`)

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


def with_defaults(given: dict[str, Any], flag_gates: Mapping[str, bool], release: Release = CURRENT) -> dict[str, Any]:
    """Complete a checked document. `flag_gates`: gates of the command line, which override those of the document."""
    full = complete(given)
    gates = {**full["featureGates"], **flag_gates}
    known = FeatureGates(
        {name: value for name, value in gates.items() if name in (ALL_ALPHA, ALL_BETA, *known_gates(release))}, release
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
    if given.get("memoryThrottlingFactor") is None:
        full["memoryThrottlingFactor"] = behavior_of(release).memory_throttling_factor
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


def without_file(flag_gates: Mapping[str, bool], release: Release = CURRENT) -> dict[str, Any]:
    """The complete configuration without `--config`: the defaults, overridden by the legacy ones."""
    full = with_defaults({}, flag_gates, release)
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
