"""Parses the texts of flags: a parser for each type, and the conversion of a command line to `FlagInput`.

Owns the types of `flags_table.py`. Results are plain values as in a configuration file. Repeated flags of a list or map type
add up, as in the reference; for any other type the last one counts.
"""

from __future__ import annotations

import os.path
import re
from collections.abc import Callable, Iterator
from typing import Any

from pykubelet.app.flags import CommandLine, FlagError, GivenFlag
from pykubelet.base.api.labels import label_value_errors, qualified_name_errors
from pykubelet.base.api.quantity import QuantityError, parse_text
from pykubelet.base.kit.durations import SECOND, format_duration, parse_duration
from pykubelet.base.kit.text import parse_bool
from pykubelet.base.model.version import CURRENT, find_release
from pykubelet.config.combine import FlagInput
from pykubelet.config.eviction import stall_threshold
from pykubelet.config.flag_values import parse_node_ip
from pykubelet.config.settings import Flags
from pykubelet.config.validate_server import is_ip

_NUMBER = re.compile(r"[+-]?(0[xX][0-9a-fA-F_]+|0[bB][01_]+|0[oO]?[0-7_]*|[1-9][0-9_]*)")
_PATHS = (
    "config",
    "config_dir",
    "kubeconfig",
    "bootstrap_kubeconfig",
    "cert_dir",
    "root_dir",
    "lock_file",
    "image_credential_provider_config",
    "image_credential_provider_bin_dir",
)


def read_flags(line: CommandLine) -> FlagInput:
    """Parse the values of a command line. Raises FlagError that names the flag and the value, or a flag of an older release."""
    release = find_release(line.last("emulated-version") or CURRENT) or CURRENT
    fields: dict[str, Any] = {}
    attributes: dict[str, Any] = {}
    names: dict[str, str] = {}
    warnings: dict[str, None] = {}
    for item in line.given:
        flag = item.flag
        if flag.kind == "version" or flag.name == "help":
            continue
        if flag.gone is not None and release.has(flag.gone):
            raise FlagError(f"unknown flag: --{flag.name} (Kubernetes {flag.gone} has removed it: leave it out)")
        if flag.deprecated:
            warnings[f"Flag --{flag.name} has been deprecated, {flag.deprecated}"] = None
        store, key = (fields, flag.target) if not flag.attribute else (attributes, flag.attribute)
        value = parse_value(item, store.get(key))
        if flag.target:
            store[key] = value
        names[f"--{flag.name}" if flag.attribute or not flag.target else flag.target] = flag.name
    for attribute in _PATHS:
        if attributes.get(attribute):
            attributes[attribute] = os.path.abspath(attributes[attribute])
    for attribute in [name for name in attributes if name.endswith("_s")]:
        attributes[attribute] = parse_duration(attributes[attribute]) / SECOND
    return FlagInput(fields, names, Flags(**attributes), tuple(warnings))


def parse_value(item: GivenFlag, before: Any) -> Any:
    """The plain value of one flag. `before`: the value from earlier flags of that name; None if there are none."""
    try:
        return _PARSERS[item.flag.kind](item.text, before)
    except ValueError as error:
        raise FlagError(f'invalid argument "{item.text}" for "{item.shown}" flag: {error}') from error


def parse_int(text: str, low: int, high: int) -> int:
    """Parse a Go integer, whose prefix gives the base. Raises ValueError with the problem."""
    bare = text.replace("_", "")
    if not _NUMBER.fullmatch(text) or (low == 0 and text[0] in "+-"):
        raise ValueError(f'"{text}" is not a whole number{" from 0" if low == 0 else ""}')
    digits = bare.lstrip("+-").lower()
    if len(digits) > 1 and digits[0] == "0" and digits[1].isdigit():
        bare = bare.replace("0", "0o", 1)
    number = int(bare, 0)
    if not low <= number <= high:
        raise ValueError(f"{text} is out of range: must be from {low} to {high}")
    return number


def _ip(text: str, _: Any) -> str:
    if text and not is_ip(text):  # empty: the default
        raise ValueError(f'"{text}" is not a valid IP address')
    return text


def _strings(text: str, before: Any) -> list[str]:
    """Parse a comma-separated list with CSV quotes."""
    if '"' in text:
        import csv  # rare

        items = next(csv.reader([text], strict=True), [])
    else:
        items = text.split(",") if text else []
    return [*(before or []), *items]


def _items(text: str, separator: str, problem: str = "") -> Iterator[tuple[str, str]]:
    """The pairs of `k=v,...`. Empty items are skipped; without a separator, the value is empty, or there is a `problem`."""
    for item in text.split(","):
        key, found, value = item.partition(separator)
        if problem and item and not found:
            raise ValueError(problem)
        if item:
            yield key.strip(), value.strip()


def _pairs(text: str, before: Any, separator: str) -> dict[str, str]:
    """Parse `k=v,...` and add it to `before`."""
    return {**(before or {}), **dict(_items(text, separator, f"malformed pair, expect string{separator}string"))}


def _whole_pair(text: str, before: Any) -> dict[str, str]:
    """Parse one `k=v`. A comma is part of the value."""
    key, found, value = text.partition("=")
    if not found:
        raise ValueError("malformed pair, expect string=string")
    return {**(before or {}), key.strip(): value.strip()}


def _bools(text: str, before: Any) -> dict[str, bool]:
    pairs = dict(before or {})
    for key, value in _items(text, "=", "malformed pair, expect string=bool"):
        try:
            pairs[key] = parse_bool(value)
        except ValueError as error:
            raise ValueError(f"invalid value of {key}: {value}, err: {error}") from error
    return pairs


def _multimap(text: str, before: Any) -> dict[str, list[str]]:
    """Parse `k:v,k:v`. The values of one key keep their order."""
    lists = {key: list(values) for key, values in (before or {}).items()}
    for key, value in _items(text, ":", "malformed pair, expect string:string"):
        lists.setdefault(key, []).append(value)
    return lists


def _quantity(text: str, _: Any) -> str:
    try:
        parse_text(text)
    except QuantityError as error:
        raise ValueError(str(error)) from error
    return text


def _vmodule(text: str, _: Any) -> list[dict[str, Any]]:
    items = []
    for item in text.split(","):
        if not item:
            continue
        pattern, found, level = item.partition("=")
        if not found or not pattern:
            raise ValueError(f'"{item}" does not have the pattern=N format')
        try:
            items.append({"filePattern": pattern, "verbosity": parse_int(level, 0, 2**31 - 1)})
        except ValueError as error:
            raise ValueError(f'parsing verbosity in "{item}": {error}') from error
    return items


def _taint(text: str) -> dict[str, str]:
    """Parse `key=value:effect` or `key:effect`."""
    parts = text.split(":")
    key, _, value = parts[0].partition("=")
    if len(parts) != 2 or "=" in value:
        raise ValueError(f"invalid taint spec: {text}")
    effect = parts[1]
    if effect not in ("NoSchedule", "PreferNoSchedule", "NoExecute"):
        raise ValueError(f"invalid taint effect: {effect}, unsupported taint effect")
    errors = label_value_errors(value) or qualified_name_errors(key)
    if errors:
        raise ValueError(f"invalid taint spec: {text}, {'; '.join(errors)}")
    return {"key": key, "value": value, "effect": effect}


def _reserved_memory(text: str, before: Any) -> list[dict[str, Any]]:
    """Parse `N:memory=1Gi,hugepages-2Mi=...`; repeatable."""
    if not text:
        return []
    node, found, rest = text.partition(":")
    if not found or ":" in rest:
        shape = "numaNodeID:type=quantity[,type=quantity...]"
        raise ValueError(f"the reserved memory has incorrect format, expected {shape}, got {text}")
    if not re.fullmatch(r"[+-]?[0-9]+", node):
        raise ValueError(f"failed to convert the NUMA node ID, exptected integer, got {node}")
    limits = {}
    for item in rest.split(","):
        name, found, amount = item.partition("=")
        if not found or "=" in amount:
            raise ValueError(f"the reserved limit has incorrect value, expected type=quantatity, got {item}")
        if name != "memory" and not name.startswith("hugepages-"):
            raise ValueError(f'memory type conversion error, unknown type: "{name}"')
        try:
            parse_text(amount)
        except QuantityError as error:
            raise ValueError(f"failed to parse the quantatity, expected quantatity, got {amount}") from error
        limits[name] = amount
    return [*(before or []), {"numaNode": int(node), "limits": limits}]


def _stalls(text: str, before: Any) -> dict[str, str]:
    """Parse `memory.full=20%,io.some=60%`."""
    stalls = dict(before or {})
    for item in text.split(","):
        name, _, share = item.partition("=")
        stall_threshold(name.strip(), share.strip())
        stalls[name.strip()] = share.strip()
    return stalls


_PARSERS: dict[str, Callable[[str, Any], Any]] = {
    "str": lambda text, _: text,
    "bool": lambda text, _: parse_bool(text),
    "int32": lambda text, _: parse_int(text, -(2**31), 2**31 - 1),
    "int64": lambda text, _: parse_int(text, -(2**63), 2**63 - 1),
    "verbosity": lambda text, _: parse_int(text, 0, 2**31 - 1),
    "duration": lambda text, _: format_duration(parse_duration(text)),
    "ip": _ip,
    "node-ip": lambda text, _: parse_node_ip(text),
    "strings": _strings,
    "texts": lambda text, before: (*(before or ()), text),  # a comma is part of it
    "map": lambda text, before: _pairs(text, before, "="),
    "map<": lambda text, before: _pairs(text, before, "<"),
    "map-whole": _whole_pair,
    "bools": _bools,
    "multimap": _multimap,
    "labels": lambda text, before: {**(before or {}), **dict(_items(text, "="))},
    "quantity": _quantity,
    "stalls": _stalls,
    "vmodule": _vmodule,
    "taints": lambda text, _: [_taint(item) for item in text.split(",")] if text else [],
    "reserved-memory": _reserved_memory,
}
