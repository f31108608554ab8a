"""What a pod costs the agent, whichever list, map or text of it, or of what it refers to, is as large as an API server admits.

The whole agent runs between doubles, in namespaces of its own (`specs/launch.sh`). `specs/fields.py` finds the fields in the generated
structs, `specs/structs.py` has what an entry of each needs, and `specs/products.py` the pods in which two things multiply. All but the
texts are also measured as static pods. `specs/limits.py` has the limits, and what remains above the usual one, with the reason.
"""

from __future__ import annotations

import json
import os
from functools import partial
from pathlib import Path

import msgspec
import pytest
from hostile.specs.alone import cases as alone_cases
from hostile.specs.fields import Cls, Kind, fields_of, structs_of
from hostile.specs.launch import run
from hostile.specs.limits import exceeded, superlinear
from hostile.specs.pods import COLLECTIONS, FIXED, object_case, object_fields, pod_case, pod_fields, stored_size
from hostile.specs.products import PRODUCTS
from hostile.specs.structs import MINIMAL
from hostile.specs.suites import SUITES

from pykubelet.base.api.core import Pod

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="mounts and namespaces")
#: Bytes of a pod that is only made, not run.
SMALL = 40_000
#: Parts of a suite that are run one after the other, so that each takes a few minutes.
PARTS = {"entries": 4, "texts": 8, "products": 3, "static entries": 3, "static products": 2}


# Nothing is forgotten


def test_every_struct_of_a_pod_and_of_what_it_refers_to_has_an_entry() -> None:
    kinds: list[Cls] = [Pod, *COLLECTIONS]
    structs = {struct.__name__ for cls in kinds for struct in structs_of(cls)} - {"Pod"}
    assert structs <= MINIMAL.keys(), "tests/hostile/specs/structs.py has no entry for a new struct"
    assert MINIMAL.keys() <= structs, "tests/hostile/specs/structs.py has an entry for a struct that is gone"


def test_every_field_is_measured() -> None:
    """Each list and map of the API has a pod in which nearly all of what it stores is in that field."""
    measured = {**SUITES["entries"], **SUITES["texts"]}.keys()
    small = {f"pod {field.path}": (field, partial(pod_case, field, SMALL)) for field in pod_fields()}
    for cls in COLLECTIONS:
        small |= {f"{cls.__name__} {f.path}": (f, partial(object_case, cls, f, SMALL)) for f in object_fields(cls)}
    assert measured == small.keys()
    for name, (field, made) in small.items():
        if field.kind is Kind.TEXT or field.path in FIXED:
            continue
        case = made()
        assert stored_size(case.objects[0][1] if case.objects else case.pod) > 0.9 * SMALL, name


class New(msgspec.Struct):
    names: tuple[str, ...] = ()
    sizes: dict[str, bytes] = msgspec.field(default_factory=dict)
    number: int | None = None
    odd: set[str] | None = None


def test_a_field_of_a_type_that_is_not_measured_is_noticed() -> None:
    with pytest.raises(TypeError, match="odd: hostile/specs has no pods with a large"):
        list(fields_of(New))


def test_every_product_has_another_size_at_another_share() -> None:
    for made in PRODUCTS.values():
        small, large = (made(share) for share in (0.05, 0.1))
        of_small, of_large = (
            stored_size(case.pod) + sum(stored_size(item) for _, item in case.objects) for case in (small, large)
        )
        assert of_small < of_large


# Costs


@needs_root
def test_what_the_agent_does_for_a_pod_grows_with_its_size(tmp_path: Path) -> None:
    counted = list(run(tmp_path / "node", "growth"))
    assert len(counted) > 100
    problems = {counts["few"]["name"]: superlinear(counts) for counts in counted}
    assert not {name: problem for name, problem in problems.items() if problem}
    assert all(counts[size]["is_gone"] for counts in counted for size in ("few", "more"))


@needs_root
@pytest.mark.crash
@pytest.mark.parametrize(("suite", "part"), [(suite, part) for suite, parts in PARTS.items() for part in range(parts)])
def test_the_largest_pods_stay_within_the_limits(suite: str, part: int, tmp_path: Path) -> None:
    costs = list(run(tmp_path / "node", "run", suite, str(part), str(PARTS[suite])))
    for cost in costs:
        print(json.dumps(cost))
    assert {cost["name"] for cost in costs} == set(list(SUITES[suite])[part :: PARTS[suite]])
    problems = {cost["name"]: exceeded(cost) for cost in costs}
    assert not {name: problem for name, problem in problems.items() if problem}


@needs_root
@pytest.mark.crash
def test_what_manifests_define_without_an_api_server_stays_within_the_limits(tmp_path: Path) -> None:
    costs = list(run(tmp_path / "node", "alone"))
    for cost in costs:
        print(json.dumps(cost))
    assert {cost["name"] for cost in costs} == {f"alone {name}" for name in alone_cases()}
    problems = {cost["name"]: exceeded(cost) for cost in costs}
    assert not {name: problem for name, problem in problems.items() if problem}
