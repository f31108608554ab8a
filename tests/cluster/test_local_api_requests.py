"""The local API answers the same requests as a real API server does: reads, watches, selectors, deletions, and errors of HTTP.

The two get the same requests, and their answers are compared without what each makes up: UIDs, versions and times. Left out is what is
meant to differ: where the API server answers with 500 to a version that is no number, this API answers with 400 or 409; a watch from a
version of the future gets 410, because it comes from objects that were lost; errors in YAML are stated in the words of its reader;
and `dryRun` in the query of a deletion counts also beside a body.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

import pytest
from local_api.requests import histories, http_errors, reads
from local_api.requests.sides import Side, compare_all, local_api
from support.cluster import Cluster

from pykubelet_local_api.kinds.schema import load_schemas


@pytest.fixture
def sides(newest_cluster: Cluster, tmp_path: Path) -> Iterator[tuple[Side, Side]]:
    """A real API server and the local one."""
    load_schemas()
    namespace = f"r-{uuid.uuid4().hex[:6]}"
    with local_api(tmp_path / "data") as kubeconfig:
        yield Side(str(newest_cluster.plane.admin), namespace), Side(kubeconfig, namespace)
    newest_cluster.delete(f"/api/v1/namespaces/{namespace}")


def test_answers_are_those_of_the_api_server(sides: tuple[Side, Side]) -> None:
    steps = chain(reads.steps(), http_errors.http_errors(), http_errors.reviews())
    assert not (found := list(compare_all(*sides, steps))), "\n\n".join(found[:20])


@pytest.mark.parametrize("seed", range(1, 5))
def test_random_histories_look_the_same(sides: tuple[Side, Side], seed: int) -> None:
    print(f"seed {seed}")
    assert not (found := list(compare_all(*sides, histories.steps(seed)))), "\n\n".join(found[:20])
