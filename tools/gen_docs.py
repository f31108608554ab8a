"""Generates the reference pages of the documentation site from the code, and lays out the site's folder for MkDocs.

Pages: flags, fields of KubeletConfiguration, HTTP endpoints, metrics, Events, the interface of extensions. Everything else on the
site is `docs/`,
README, ARCHITECTURE, SCOPE, CONTRIBUTING, SECURITY and CHANGELOG as they are.

Usage: ``python tools/gen_docs.py FOLDER`` (``make docs`` then builds the site from it)
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import json
import pkgutil
import re
import shutil
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import pykubelet
from pykubelet.app.extensions.load import POINTS
from pykubelet.app.flags_table import ALL, Flag
from pykubelet.base.kit.metrics import PROBES, REGISTRY, MetricFamily
from pykubelet.base.model import reasons
from pykubelet.base.model.lifecycle import Lifecycles
from pykubelet.base.model.node import NodeView
from pykubelet.base.model.observed import Observed
from pykubelet.base.model.roster import Roster
from pykubelet.base.model.statuses import Statuses
from pykubelet.config.schema import Field, ListOf, MapOf, Node, Object, Scalar, config_shape
from pykubelet.extension import VERSION, Extension, values
from pykubelet.serve.endpoints.table import ENDPOINTS
from pykubelet.serve.metrics.kubelet import MetricsInputs, kubelet_families

CHECKOUT = Path(__file__).parents[1]
PAGES = ("ARCHITECTURE.md", "SCOPE.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md")
GENERATED = "This page is generated from the code by `make docs`.\n\n"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table; `|` in cells is escaped."""
    lines = [" | ".join(head), " | ".join("---" for _ in head)]
    lines += [" | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in row) for row in rows]
    return "".join(f"| {line} |\n" for line in lines)


def flags_page(flags: Iterable[Flag] = tuple(ALL.values())) -> str:
    """All flags with their type, target and help."""

    def row(flag: Flag) -> tuple[str, ...]:
        field = f"`{flag.target}`" if flag.target and not flag.attribute else ""
        notes = f"Deprecated: {flag.deprecated}" if flag.deprecated else flag.help
        return f"`--{flag.name}`", flag.kind, field, notes

    rows = map(row, sorted(flags, key=lambda flag: flag.name))
    return f"# Flags\n\n{GENERATED}" + table(("Flag", "Type", "Field of the configuration file", "Meaning"), rows)


def fields_page() -> str:
    """All fields of KubeletConfiguration with type, default and effect."""
    rows = [
        (f"`{path}`", type_name(field.node), f"`{json.dumps(field.default)}`", effect(field))
        for path, field in fields(config_shape())
    ]
    return f"# Fields of KubeletConfiguration\n\n{GENERATED}" + table(("Field", "Type", "Default", "Effect"), rows)


def fields(shape: Object, prefix: str = "") -> Iterator[tuple[str, Field]]:
    """Every field below `shape` with its path; lists of objects are written `name[]`."""
    for name, field in shape.fields.items():
        path, node = f"{prefix}{name}", field.node
        if isinstance(node, ListOf) and isinstance(node.item, Object):
            path, node = f"{path}[]", node.item
        if isinstance(node, Object):
            yield from fields(node, f"{path}.")
        else:
            yield path, field


def type_name(node: Node) -> str:
    match node:
        case Scalar(kind=kind):
            return kind
        case ListOf(item=item):
            return f"list of {type_name(item)}"
        case MapOf(value=value):
            return f"map to {type_name(value)}"
        case _:
            return "object"


def effect(field: Field) -> str:
    return "none, as in Kubernetes 1.36" if field.inert else "as in Kubernetes 1.36"


def endpoints_page() -> str:
    """The endpoints of the ports with their authorization."""
    rows = (
        (
            f"`{endpoint.path}{'*' if endpoint.below else ''}`",
            ", ".join(sorted(endpoint.methods)) or "any",
            ", ".join(f"`nodes/{part}`" for part in endpoint.authorization),
            "yes" if endpoint.read_only else "",
        )
        for endpoint in ENDPOINTS
    )
    head = ("Path", "Methods", "Authorized by any of", "On the read-only port")
    return f"# HTTP endpoints\n\n{GENERATED}" + table(head, rows)


def metrics_page() -> str:
    """All metrics with type, labels and help."""
    for module in pkgutil.walk_packages(pykubelet.__path__, "pykubelet."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    now = MetricsInputs(
        roster=Roster(),
        lifecycles=Lifecycles(),
        observed=Observed(),
        statuses=Statuses(),
        node=NodeView("node", "node"),
        gates={"Example": (True, "GA")},
        version="v1.36.2",
        cgroup_version=2,
    )
    sources: tuple[tuple[str, Iterable[MetricFamily]], ...] = (
        ("/metrics", [*REGISTRY.families(), *kubelet_families(now)]),
        ("/metrics/probes", PROBES.families()),
    )
    rows = sorted(
        (f"`{family.name}`", family.kind, path, family.help) for path, families in sources for family in families
    )
    return f"# Metrics\n\n{GENERATED}" + table(("Metric", "Type", "Endpoint", "Meaning"), rows)


def events_page() -> str:
    """The reasons of the Events that the agent sends."""
    names = sorted({value for name, value in vars(reasons).items() if name.startswith("EVENT_")})
    return f"# Events\n\n{GENERATED}Reasons of the Events that the agent records:\n\n" + "".join(
        f"- `{name}`\n" for name in names
    )


def extensions_page() -> str:
    """The points and values of extensions, with their signatures and docstrings."""
    parts = [f"# The interface of extensions, version {VERSION}\n\n{GENERATED}{inspect.getdoc(values)}\n\n## Points\n"]
    for name in POINTS:
        method = getattr(Extension, name)
        parts.append(
            f"### {name}\n\n```python\ndef {name}{inspect.signature(method)}\n```\n\n{inspect.getdoc(method)}\n"
        )
    parts.append("## Values\n")
    for name, kind in sorted(vars(values).items()):
        if dataclasses.is_dataclass(kind) and isinstance(kind, type):
            rows = [(f"`{field.name}`", f"`{field.type}`") for field in dataclasses.fields(kind)]
            parts.append(f"### {name}\n\n{inspect.getdoc(kind)}\n\n{table(('Field', 'Type'), rows)}")
    return "\n".join(parts)


REFERENCE = {
    "flags": flags_page,
    "fields": fields_page,
    "endpoints": endpoints_page,
    "metrics": metrics_page,
    "events": events_page,
    "extensions": extensions_page,
}


def build(folder: Path) -> None:
    """Write the site's sources to `folder`, anew."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(CHECKOUT / "docs", folder)
    (folder / "index.md").write_text(_for_site((CHECKOUT / "README.md").read_text()))
    for name in PAGES:
        if (CHECKOUT / name).exists():
            (folder / name.lower()).write_text(_for_site((CHECKOUT / name).read_text()))
    (folder / "reference").mkdir()
    for name, page in REFERENCE.items():
        (folder / "reference" / f"{name}.md").write_text(page())


def _for_site(text: str) -> str:
    """The links of a page of the checkout's top folder, as they are on the site."""
    text = re.sub(r"\]\(docs/", "](", text)
    return re.sub(r"\]\(([A-Z]+\.md)", lambda link: f"]({link[1].lower()}", text)


if __name__ == "__main__":
    build(Path(sys.argv[1]))
