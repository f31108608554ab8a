"""YAML and JSON text as plain objects, the way the API machinery reads it. Pure.

Owns: YAML 1.1 scalars except dates (a date is text), text keys (numbers and booleans as keys become text), duplicate
keys as errors, exactly one document, and a bound on what aliases may expand to. Imports the YAML reader on first use.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    import yaml

#: Nodes a document may have once its aliases are written out; a plain 10 MiB document stays far below.
MAX_NODES = 5_000_000


class DocumentError(ValueError):
    """The text is no single YAML or JSON document. `line` counts from 1; 0 when it is not known."""

    def __init__(self, reason: str, line: int = 0) -> None:
        super().__init__(f"line {line}: {reason}" if line else reason)
        self.reason = reason
        self.line = line


def load_document(data: bytes) -> object:
    """The one document in `data`; None when it is empty."""
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DocumentError(f"not UTF-8 text: {error.reason} at byte {error.start}") from error
    if text.lstrip()[:1] == "{":
        try:
            value: object = msgspec.json.decode(text)
            return value
        except (msgspec.DecodeError, RecursionError):
            pass  # YAML in flow style also begins with a brace, and its reader has the better words
    try:
        return _load_yaml(text)
    except RecursionError as error:
        raise DocumentError("nested too deeply") from error


def _load_yaml(text: str) -> object:
    import yaml

    documents: list[object] = []
    loader: Any = _loader()(text)
    try:
        while loader.check_data():
            document = loader.get_data()
            if document is not None:
                documents.append(document)
            if len(documents) > 1:
                raise DocumentError("more than one document")
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        words = error.problem or error.context or "not YAML"
        raise DocumentError(f"not YAML: {words}", mark.line + 1 if mark else 0) from error
    except yaml.YAMLError as error:
        raise DocumentError(f"not YAML: {str(error).splitlines()[0]}") from error
    finally:
        loader.dispose()
    if not documents:
        return None
    if _expanded_size(documents[0], {}) > MAX_NODES:
        raise DocumentError("aliases expand to too much")
    return documents[0]


def _expanded_size(value: object, known: dict[int, int]) -> int:
    """Nodes of `value` with every alias written out."""
    if not isinstance(value, dict | list):
        return 1
    size = known.get(id(value))
    if size is None:
        known[id(value)] = MAX_NODES + 1  # met again before it is known: the document contains itself
        items = value.values() if isinstance(value, dict) else value
        size = 1 + sum(_expanded_size(item, known) for item in items)
        known[id(value)] = size
    return size


@cache
def _loader() -> type[yaml.CSafeLoader]:
    import yaml

    class Loader(yaml.CSafeLoader):
        """The safe loader with text keys, no dates and no silent duplicates."""

        def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
            self.flatten_mapping(node)
            mapping: dict[Any, Any] = {}
            for key_node, value_node in node.value:
                key = _text_key(self.construct_object(key_node, deep=True), key_node)
                if key in mapping:
                    raise yaml.constructor.ConstructorError(
                        None, None, f'key "{key}" already set in map', key_node.start_mark
                    )
                mapping[key] = self.construct_object(value_node, deep=deep)
            return mapping

    def _text_key(key: object, node: yaml.Node) -> str:
        if isinstance(key, str):
            return key
        if isinstance(key, bool):
            return "true" if key else "false"
        if isinstance(key, int | float):
            return str(key)
        raise yaml.constructor.ConstructorError(None, None, "a key is not text", node.start_mark)

    Loader.yaml_implicit_resolvers = {
        first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
        for first, resolvers in yaml.CSafeLoader.yaml_implicit_resolvers.items()
    }
    return Loader
