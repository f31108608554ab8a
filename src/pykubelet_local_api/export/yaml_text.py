"""Writes objects as YAML that Kubernetes' readers understand as it was meant. Pure.

Text that YAML 1.1 would take for another type, such as `y` or `1e3`, is quoted. Text of several lines is a block.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cache
from typing import Any

from pykubelet.base.api.documents import resolve_scalar
from pykubelet_local_api.objects import Json


def yaml_documents(objects: Iterable[Json]) -> Iterator[str]:
    """The text of each object, with the line that begins a document."""
    import yaml

    for found in objects:
        text = yaml.dump(found, Dumper=_dumper(yaml), sort_keys=False, allow_unicode=True, width=10_000)
        yield f"---\n{text}"


@cache
def _dumper(yaml: Any) -> Any:
    dumper: Any = type("_ExportDumper", (yaml.SafeDumper,), {"ignore_aliases": lambda *_: True})

    def text(made: Any, value: str) -> Any:
        style = "|" if "\n" in value else None if isinstance(resolve_scalar(value), str) else '"'
        return made.represent_scalar("tag:yaml.org,2002:str", value, style=style)

    dumper.add_representer(str, text)
    return dumper
