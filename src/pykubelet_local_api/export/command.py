"""`pykubelet local-api export`: writes the objects of the running API as YAML to its output.

Exit codes: 0 written, 1 the API does not answer or refuses, 2 wrong command line. Remarks go to the error output.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from pykubelet.edges.host.fs.errors import HostError
from pykubelet_local_api.ask import running_api
from pykubelet_local_api.client import OwnClient, collection_path
from pykubelet_local_api.errors import StatusError
from pykubelet_local_api.export.portable import exported
from pykubelet_local_api.export.yaml_text import yaml_documents
from pykubelet_local_api.kinds.table import STORED
from pykubelet_local_api.objects import Json, name_of, namespace_of


class ListedObjects:
    """A view of the objects that were listed. `now` does not matter to an export."""

    now = 0.0

    def __init__(self, objects: dict[str, list[Json]]) -> None:
        self._objects = objects

    def get(self, resource: str, namespace: str, name: str) -> Json | None:
        """See `View`."""
        return next((each for each in self.list(resource, namespace) if name_of(each) == name), None)

    def list(self, resource: str, namespace: str = "") -> Iterable[Json]:
        """See `View`."""
        return [each for each in self._objects.get(resource, ()) if namespace in ("", namespace_of(each))]


def build_parser(data_dir: str) -> argparse.ArgumentParser:
    """The options of the command line."""
    parser = argparse.ArgumentParser(
        prog="pykubelet local-api export",
        description="Write the objects of the running local API as YAML that another cluster takes.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "--data-dir", default=data_dir, metavar="DIR", help="the folder of the running API (default %(default)s)"
    )
    parser.add_argument("-n", "--namespace", default="", metavar="NAME", help="only the objects of this namespace")
    return parser


def export(argv: Sequence[str], data_dir: str) -> int:
    """Run the command; returns its exit code. `data_dir`: the default."""
    options = build_parser(data_dir).parse_args(argv)
    try:
        client = running_api(Path(options.data_dir))
        view = asyncio.run(_listed(client))
    except (HostError, OSError, ValueError) as error:
        print(f"Error: cannot use {options.data_dir}: {error}", file=sys.stderr)
        return 1
    except StatusError as error:
        print(f"Error: {error.message}", file=sys.stderr)
        return 1
    found, remarks = exported(view, options.namespace)
    for text in yaml_documents(found):
        sys.stdout.write(text)
    for remark in remarks:
        print(f"# {remark}", file=sys.stderr)
    return 0


async def _listed(client: OwnClient) -> ListedObjects:
    objects: dict[str, list[Json]] = {}
    for resource, kind in STORED.items():
        if resource != "events":
            objects[resource] = (await client.get(collection_path(kind))).get("items") or []
    return ListedObjects(objects)
