from __future__ import annotations

import pytest

from pykubelet.base.api import labels
from pykubelet.base.api.core import ContainerPort, LabelSelector, LabelSelectorRequirement
from pykubelet.base.api.intorstring import resolve_port

SUBDOMAIN = (
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and "
    "end with an alphanumeric character (e.g. 'example.com', regex used for validation is "
    r"'[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')"
)
LABEL = (
    "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with "
    "an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is "
    "'[a-z0-9]([-a-z0-9]*[a-z0-9])?')"
)


def test_dns_names() -> None:
    assert labels.dns_subdomain_errors("a-b.c0") == []
    assert labels.dns_subdomain_errors("A") == [SUBDOMAIN]
    assert labels.dns_subdomain_errors("a" * 254) == ["must be no more than 253 bytes"]
    assert labels.dns_label_errors("a.b") == ["must not contain dots"]
    assert labels.dns_label_errors("-a") == [LABEL]
    assert labels.dns_label_errors("a\n") == [LABEL]
    assert labels.dns_search_errors("_sip._tcp.example.com") == []


def test_qualified_names() -> None:
    assert labels.qualified_name_errors("example.com/My_Name.1") == []
    assert labels.qualified_name_errors("/a") == ["prefix part must be non-empty"]
    assert labels.qualified_name_errors("Ex/a") == ["prefix part " + SUBDOMAIN]
    assert labels.qualified_name_errors("a" * 64) == ["name part must be no more than 63 bytes"]
    assert labels.qualified_name_errors("")[0] == "name part must be non-empty"
    assert labels.qualified_name_errors("a/b/c") == [
        "a qualified name must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an "
        "alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is "
        "'([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]') with an optional DNS subdomain prefix and '/' "
        "(e.g. 'example.com/MyName')"
    ]


def test_smaller_names() -> None:
    assert labels.label_value_errors("") == []
    assert labels.label_value_errors("a b")[0].startswith("a valid label must be an empty string or consist of")
    assert labels.env_name_errors("a b!") == []
    assert labels.env_name_errors("a=b") == [
        "a valid environment variable name must consist only of printable ASCII characters other than '='"
    ]
    assert labels.config_key_errors("..a") == ["must not start with '..'"]
    assert labels.port_name_errors("http-") == ["must not begin or end with a hyphen"]
    assert labels.port_name_errors("80") == ["must contain at least one letter (a-z)"]
    assert labels.port_number_errors(0) == ["must be between 1 and 65535, inclusive"]
    assert labels.id_errors(-1) == ["must be between 0 and 2147483647, inclusive"]


def requirement(key: str, operator: str, *values: str) -> LabelSelector:
    return LabelSelector(matchExpressions=(LabelSelectorRequirement(key=key, operator=operator, values=values),))


@pytest.mark.parametrize(
    ("selector", "matches"),
    [
        (None, False),
        (LabelSelector(), True),
        (LabelSelector(matchLabels={"a": "1"}), True),
        (LabelSelector(matchLabels={"a": "2"}), False),
        (requirement("a", "In", "1", "2"), True),
        (requirement("b", "In", "1"), False),
        (requirement("a", "NotIn", "1"), False),
        (requirement("b", "NotIn", "1"), True),
        (requirement("a", "Exists"), True),
        (requirement("a", "DoesNotExist"), False),
    ],
)
def test_selectors(selector: LabelSelector | None, matches: bool) -> None:
    assert labels.matches_selector(selector, {"a": "1"}) is matches


def test_selector_with_an_unknown_operator_is_refused() -> None:
    with pytest.raises(ValueError, match='"Like" is not a valid label selector operator'):
        labels.matches_selector(requirement("a", "Like"), {})


def test_ports_by_number_and_name() -> None:
    ports = (ContainerPort(name="web", containerPort=8080),)
    assert [resolve_port(port, ports) for port in (80, "web", "81", "other", 0)] == [80, 8080, 81, None, None]
    assert [resolve_port(port, ports) for port in ("65536", "9" * 5000, "²")] == [None, None, None]
