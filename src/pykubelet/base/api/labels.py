"""Validates names, labels and annotations in the API server's words, and matches label selectors. Pure.

The `*_errors` functions return the reasons why a value is not legal, an empty list if it is. Each reason is a text that
follows `Invalid value: "...": `. Source: Kubernetes docs, "Object Names and IDs", "Labels and Selectors".
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from pykubelet.base.api.core import LabelSelector

_LABEL = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_LABEL_UNDERSCORE = "_?[a-z0-9]([-_a-z0-9]*[a-z0-9])?"
_SUBDOMAIN = _LABEL + r"(\." + _LABEL + ")*"
_SUBDOMAIN_UNDERSCORE = _LABEL_UNDERSCORE + r"(\." + _LABEL_UNDERSCORE + ")*"
_QUALIFIED = "([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]"
_LABEL_VALUE = "(" + _QUALIFIED + ")?"
_CONFIG_KEY = "[-._a-zA-Z0-9]+"
_HEADER = "[-A-Za-z0-9]+"

_LABEL_TEXT = (
    "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', "
    "and must start and end with an alphanumeric character"
)
_SUBDOMAIN_TEXT = (
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', "
    "and must start and end with an alphanumeric character"
)
_SUBDOMAIN_UNDERSCORE_TEXT = (
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '_', '-' or '.', "
    "and must start and end with an alphanumeric character"
)
_QUALIFIED_TEXT = (
    "must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character"
)
_LABEL_VALUE_TEXT = (
    "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', "
    "and must start and end with an alphanumeric character"
)
_CONFIG_KEY_TEXT = "a valid config key must consist of alphanumeric characters, '-', '_' or '.'"
_HEADER_TEXT = "a valid HTTP header must consist of alphanumeric characters or '-'"
_ENV_TEXT = "a valid environment variable name must consist only of printable ASCII characters other than '='"


def _too_long(limit: int) -> str:
    return f"must be no more than {limit} bytes"


def _length(value: str) -> int:
    return len(value) if value.isascii() else len(value.encode())


def _regex(text: str, pattern: str, *examples: str) -> str:
    shown = " or ".join(f"'{example}', " for example in examples)
    return f"{text} (e.g. {shown}regex used for validation is '{pattern}')"


def range_error(low: int, high: int) -> str:
    """The reason for a number outside `low`..`high`."""
    return f"must be between {low} and {high}, inclusive"


def dns_label_errors(value: str) -> list[str]:
    """RFC 1123 label: container, volume and host names."""
    errors = [_too_long(63)] if _length(value) > 63 else []
    if not re.fullmatch(_LABEL, value, re.ASCII):
        dots_only = re.fullmatch(_SUBDOMAIN, value, re.ASCII) is not None
        errors.append("must not contain dots" if dots_only else _regex(_LABEL_TEXT, _LABEL, "my-name", "123-abc"))
    return errors


def path_segment_errors(value: str) -> list[str]:
    """A name that is only not to break a path: of roles and other objects of access control."""
    if value in (".", ".."):
        return [f"may not be '{value}'"]
    return [f"may not contain '{part}'" for part in "/%" if part in value]


def dns_subdomain_errors(value: str) -> list[str]:
    """RFC 1123 subdomain: names of pods, nodes and most objects."""
    errors = [_too_long(253)] if _length(value) > 253 else []
    if not re.fullmatch(_SUBDOMAIN, value, re.ASCII):
        errors.append(_regex(_SUBDOMAIN_TEXT, _SUBDOMAIN, "example.com"))
    return errors


def dns_search_errors(value: str) -> list[str]:
    """DNS search domain: a subdomain with labels that may have underscores."""
    errors = [_too_long(253)] if _length(value) > 253 else []
    if not re.fullmatch(_SUBDOMAIN_UNDERSCORE, value, re.ASCII):
        errors.append(_regex(_SUBDOMAIN_UNDERSCORE_TEXT, _SUBDOMAIN_UNDERSCORE, "example.com"))
    return errors


def qualified_name_errors(value: str) -> list[str]:
    """`[prefix/]name`: keys of labels and annotations, resource names, condition types."""
    parts = value.split("/")
    errors: list[str] = []
    if len(parts) > 2:
        reason = _regex(_QUALIFIED_TEXT, _QUALIFIED, "MyName", "my.name", "123-abc")
        return [f"a qualified name {reason} with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')"]
    if len(parts) == 2:
        if parts[0] == "":
            errors.append("prefix part must be non-empty")
        else:
            errors += [f"prefix part {reason}" for reason in dns_subdomain_errors(parts[0])]
    name = parts[-1]
    if name == "":
        errors.append("name part must be non-empty")
    elif _length(name) > 63:
        errors.append("name part " + _too_long(63))
    if not re.fullmatch(_QUALIFIED, name, re.ASCII):
        errors.append("name part " + _regex(_QUALIFIED_TEXT, _QUALIFIED, "MyName", "my.name", "123-abc"))
    return errors


def label_key_errors(value: str) -> list[str]:
    """The key of a label in a selector: a qualified name, with words of its own."""
    return [
        reason.replace("a qualified name must", "a valid label key must") for reason in qualified_name_errors(value)
    ]


def label_value_errors(value: str) -> list[str]:
    """The value of a label."""
    errors = [_too_long(63)] if _length(value) > 63 else []
    if not re.fullmatch(_LABEL_VALUE, value, re.ASCII):
        errors.append(_regex(_LABEL_VALUE_TEXT, _LABEL_VALUE, "MyValue", "my_value", "12345"))
    return errors


def env_name_errors(value: str) -> list[str]:
    """The name of an environment variable (the relaxed rule, in force since 1.34)."""
    if value == "":
        return ["environment variable name must be non-empty"]
    return [] if all(" " <= char <= "~" and char != "=" for char in value) else [_ENV_TEXT]


def config_key_errors(value: str) -> list[str]:
    """A key of a ConfigMap or Secret."""
    errors = [_too_long(253)] if _length(value) > 253 else []
    if not re.fullmatch(_CONFIG_KEY, value, re.ASCII):
        errors.append(_regex(_CONFIG_KEY_TEXT, _CONFIG_KEY, "key.name", "KEY_NAME", "key-name"))
    if value == ".":
        errors.append("must not be '.'")
    elif value == "..":
        errors.append("must not be '..'")
    elif value.startswith(".."):
        errors.append("must not start with '..'")
    return errors


def header_name_errors(value: str) -> list[str]:
    """The name of an HTTP header."""
    return [] if re.fullmatch(_HEADER, value, re.ASCII) else [_regex(_HEADER_TEXT, _HEADER, "X-Header-Name")]


def port_number_errors(port: int) -> list[str]:
    """A TCP or UDP port."""
    return [] if 1 <= port <= 65535 else [range_error(1, 65535)]


def port_name_errors(name: str) -> list[str]:
    """The name of a container port (IANA service name)."""
    errors = [_too_long(15)] if _length(name) > 15 else []
    if not re.fullmatch("[-a-z0-9]+", name, re.ASCII):
        errors.append("must contain only alpha-numeric characters (a-z, 0-9), and hyphens (-)")
    if not any("a" <= char <= "z" for char in name):
        errors.append("must contain at least one letter (a-z)")
    if "--" in name:
        errors.append("must not contain consecutive hyphens")
    if name.startswith("-") or name.endswith("-"):
        errors.append("must not begin or end with a hyphen")
    return errors


def id_errors(number: int) -> list[str]:
    """A Unix user or group id."""
    return [] if 0 <= number <= 0x7FFFFFFF else [range_error(0, 0x7FFFFFFF)]


def matches_selector(selector: LabelSelector | None, labels: Mapping[str, str]) -> bool:
    """Whether `labels` satisfy `selector`. A missing selector matches nothing, an empty one everything.

    Raises ValueError for an unknown operator.
    """
    if selector is None:
        return False
    if any(labels.get(key) != value for key, value in selector.matchLabels.items()):
        return False
    for requirement in selector.matchExpressions:
        present = requirement.key in labels
        match requirement.operator:
            case "In":
                fits = present and labels[requirement.key] in requirement.values
            case "NotIn":
                fits = not present or labels[requirement.key] not in requirement.values
            case "Exists":
                fits = present
            case "DoesNotExist":
                fits = not present
            case other:
                raise ValueError(f'"{other}" is not a valid label selector operator')
        if not fits:
            return False
    return True
