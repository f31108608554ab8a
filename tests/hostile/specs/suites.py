"""The pods whose cost is measured, by suite and name. Each is made when it is run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from hostile.specs.fields import Kind
from hostile.specs.pods import COLLECTIONS, WHOLE, Case, object_case, object_fields, pod_case, pod_fields
from hostile.specs.products import PRODUCTS

Cases = dict[str, Callable[[], Case]]


def _fields(kinds: set[Kind], size: int) -> Cases:
    cases: Cases = {
        f"pod {field.path}": partial(pod_case, field, size) for field in pod_fields() if field.kind in kinds
    }
    for cls in COLLECTIONS:
        for field in object_fields(cls):
            if field.kind in kinds:
                cases[f"{cls.__name__} {field.path}"] = partial(object_case, cls, field, size)
    return cases


def _products(share: float) -> Cases:
    return {name: partial(_named, name, share) for name in PRODUCTS}


def _named(name: str, share: float) -> Case:
    return replace(PRODUCTS[name](share), name=name)


def _static(cases: Cases) -> Cases:
    """The same pods as manifests."""
    return {f"static {name}": partial(_as_static, made) for name, made in cases.items()}


def _as_static(made: Callable[[], Case]) -> Case:
    case = made()
    return replace(case, name=f"static {case.name}", is_static=True)


SUITES: dict[str, Cases] = {
    "entries": _fields({Kind.LIST, Kind.MAP}, WHOLE),
    "texts": _fields({Kind.TEXT}, WHOLE),
    "products": _products(1.0),
    "static entries": _static(
        {name: made for name, made in _fields({Kind.LIST, Kind.MAP}, WHOLE).items() if name.startswith("pod ")}
    ),
    "static products": _static(_products(1.0)),
    "half products": _products(0.5),
}
