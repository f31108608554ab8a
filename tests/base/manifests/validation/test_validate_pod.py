"""The error texts of kube-apiserver for pods that are not legal, word for word."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.cost import count_instructions

from pykubelet.base.api import codec, core
from pykubelet.base.manifests.defaults import default_pod
from pykubelet.base.manifests.validation import ErrorKind, validate_pod
from pykubelet.base.manifests.validation.errors import DELETION_COST, validate_pod_annotations

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
LABEL_VALUE = (
    "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and "
    "end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation is "
    "'(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')"
)
WORDS = {"<subdomain>": SUBDOMAIN, "<label>": LABEL, "<label value>": LABEL_VALUE}
TABLE: dict[str, list[dict[str, Any]]] = yaml.safe_load((Path(__file__).parent / "cases.yaml").read_text())
LEGAL = TABLE.pop("legal")
CASES = [pytest.param(case, id=f"{group}-{n}") for group, cases in TABLE.items() for n, case in enumerate(cases)]


def pod_with(changes: dict[str, Any]) -> core.Pod:
    """A legal pod, with some fields set by path (`spec.containers[0].name`); None takes a field away."""
    pod: dict[str, Any] = {
        "metadata": {"name": "p", "namespace": "default"},
        "spec": {
            "nodeName": "node",
            "containers": [{"name": "c", "image": "busybox:1"}],
            "volumes": [{"name": "v", "emptyDir": {}}, {"name": "img", "image": {"reference": "x:1"}}],
        },
    }
    for path, value in changes.items():
        steps = [int(step) if step.isdigit() else step for step in re.findall(r"[^.\[\]]+", path)]
        at: Any = pod
        for step, following in pairwise(steps):
            if isinstance(step, int):
                at = at[step]
            else:
                at = at.setdefault(step, [] if isinstance(following, int) else {})
            if isinstance(at, list) and isinstance(following, int) and len(at) <= following:
                at.append({})
        if value is None:
            at.pop(steps[-1])
        elif isinstance(steps[-1], int) and len(at) <= steps[-1]:
            at.append(copy.deepcopy(value))
        else:
            at[steps[-1]] = copy.deepcopy(value)
    return default_pod(codec.from_object(core.Pod, pod))


def errors_of(changes: dict[str, Any]) -> list[str]:
    return [str(error) for error in validate_pod(pod_with(changes))]


def test_a_plain_pod_is_legal() -> None:
    assert errors_of({}) == []


@pytest.mark.parametrize("case", LEGAL, ids=lambda case: ",".join(case["with"]))
def test_legal(case: dict[str, Any]) -> None:
    assert errors_of(case["with"]) == []


def spoken(error: str) -> str:
    for short, text in WORDS.items():
        error = error.replace(short, text)
    return error


@pytest.mark.parametrize("case", CASES)
def test_refused(case: dict[str, Any]) -> None:
    changes = {
        path: {"a": "x" * 262144} if value == {"a": "<256 KiB>"} else value for path, value in case["with"].items()
    }
    assert errors_of(changes) == [spoken(error) for error in case["errors"]]


def test_table_is_not_small() -> None:
    assert len(CASES) >= 120


def test_errors_are_values_with_parts() -> None:
    (error,) = validate_pod(pod_with({"metadata.name": None}))
    assert (error.path, error.kind, error.detail) == (
        "metadata.name",
        ErrorKind.REQUIRED,
        "name or generateName is required",
    )
    assert error.body == "Required value: name or generateName is required"


@pytest.mark.parametrize(
    ("cost", "allowed"), [("2147483647", True), ("-2147483648", True), ("2147483648", False), ("9" * 5000, False)]
)
def test_a_deletion_cost_has_32_bits(cost: str, allowed: bool) -> None:
    errors = validate_pod_annotations({DELETION_COST: cost}, core.PodSpec(), "metadata.annotations")
    assert (errors == []) is allowed


def claims_of(*claims: tuple[str, str], pod_claims: int = 0) -> core.Pod:
    own = [{"name": f"r{n}", "resourceClaimName": "r"} for n in range(pod_claims)]
    named = [{"name": name, "request": request} for name, request in claims]
    return pod_with({"spec.resourceClaims": own, "spec.containers[0].resources": {"claims": named}})


def test_a_claim_is_used_whole_or_by_its_requests() -> None:
    errors = validate_pod(
        claims_of(("r0", ""), ("r1", "a"), ("r1", "b"), ("r1", ""), ("r0", ""), ("r1", "a"), pod_claims=2)
    )
    at = "spec.containers[0].resources.claims"
    assert [str(error) for error in errors] == [
        f'{at}[3]: Duplicate value: "r1"',
        f'{at}[3]: Duplicate value: "r1"',
        f'{at}[4]: Duplicate value: "r0"',
        f'{at}[5]: Duplicate value: "r1"',
    ]


def test_a_message_does_not_list_thousands_of_claims() -> None:
    (few,) = validate_pod(claims_of(("x", ""), pod_claims=3))
    assert str(few).endswith("must be one of the names in pod.spec.resourceClaims: r0, r1, r2")
    (many,) = validate_pod(claims_of(("x", ""), pod_claims=3000))
    assert str(many).endswith("must be one of the names in pod.spec.resourceClaims, of which there are 3000")


def many_claims(count: int) -> core.Pod:
    return claims_of(*((f"r{n}", "") for n in range(count)), pod_claims=count)


def many_constraints(count: int) -> core.Pod:
    constraint = {"maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule"}
    return pod_with({"spec.topologySpreadConstraints": [{**constraint, "topologyKey": f"t{n}"} for n in range(count)]})


@pytest.mark.parametrize("made", [many_claims, many_constraints])
def test_the_work_grows_with_the_number_of_entries(made: Callable[[int], core.Pod]) -> None:
    few, more = (count_instructions(partial(validate_pod, made(count))) for count in (200, 400))
    assert more < 2.2 * few
