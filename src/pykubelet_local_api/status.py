"""`pykubelet local-api status`: shows what the running API applies from its folder, and what is wrong with the files.

Exit codes: 0 all is applied, 1 a file has a problem, or the API does not answer, 2 wrong command line.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path

from pykubelet.edges.host.fs.errors import HostError
from pykubelet_local_api.ask import running_api
from pykubelet_local_api.client import object_path
from pykubelet_local_api.directory.loop import REPORT
from pykubelet_local_api.errors import StatusError
from pykubelet_local_api.kinds.table import STORED
from pykubelet_local_api.objects import Json


def status_parser(data_dir: str) -> argparse.ArgumentParser:
    """The options of the command line."""
    parser = argparse.ArgumentParser(
        prog="pykubelet local-api status",
        description="Show what the running local API applies from its folder, and what is wrong with the files.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "--data-dir", default=data_dir, metavar="DIR", help="the folder of the running API (default %(default)s)"
    )
    return parser


def status(argv: Sequence[str], data_dir: str) -> int:
    """Run the command; returns its exit code. `data_dir`: the default."""
    options = status_parser(data_dir).parse_args(argv)
    try:
        client = running_api(Path(options.data_dir))
        report = asyncio.run(client.get(object_path(STORED["configmaps"], "kube-system", REPORT)))
    except (HostError, OSError, ValueError) as error:
        print(f"Error: cannot use {options.data_dir}: {error}", file=sys.stderr)
        return 1
    except StatusError as error:
        if error.code == 404:
            print("No folder is applied: the API runs without --apply-dir")
            return 0
        print(f"Error: {error.message}", file=sys.stderr)
        return 1
    text, is_well = rendered(report.get("data") or {})
    print(text)
    return 0 if is_well else 1


def rendered(report: Json) -> tuple[str, bool]:
    """The report for people, and whether there is no problem. `report`: the data of the ConfigMap."""
    problems = str(report.get("problems") or "").splitlines()
    head = f"Applied from {report.get('directory')}: {report.get('status')}"
    return "\n".join((head, *(f"  {problem}" for problem in problems))), not problems
