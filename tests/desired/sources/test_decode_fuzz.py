"""Whatever a manifest holds, the answer is pods or problems, never an exception."""

from __future__ import annotations

import copy
from typing import Any

import msgspec
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from pykubelet.base.api import core
from pykubelet.base.model.remarks import Remark
from pykubelet.base.model.roster import ManifestProblem
from pykubelet.desired.sources.decode import ManifestRules, decode_manifest
from pykubelet.desired.sources.static import file_origin

ORIGIN = file_origin("/m/a.yaml")
FULL: dict[str, Any] = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "web", "labels": {"app": "web"}, "finalizers": ["a/b"], "ownerReferences": [{"name": "x"}]},
    "spec": {
        "dnsConfig": {"nameservers": ["1.1.1.1"], "searches": ["a"]},
        "hostAliases": [{"ip": "1.1.1.1", "hostnames": ["a"]}],
        "tolerations": [{"operator": "Exists"}],
        "resources": {"limits": {"cpu": "2"}},
        "securityContext": {"sysctls": [{"name": "net.a", "value": "1"}], "seccompProfile": {"type": "Unconfined"}},
        "volumes": [
            {"name": "v", "emptyDir": {"sizeLimit": "1Gi"}},
            {"name": "d", "downwardAPI": {"items": [{"path": "a", "fieldRef": {"fieldPath": "metadata.name"}}]}},
            {"name": "p", "projected": {"sources": [{"downwardAPI": {"items": []}}]}},
            {"name": "h", "hostPath": {"path": "/a", "type": "File"}},
        ],
        "initContainers": [
            {"name": "i", "image": "x", "restartPolicy": "Always", "startupProbe": {"grpc": {"port": 1}}}
        ],
        "containers": [
            {
                "name": "c",
                "image": "x:1",
                "env": [{"name": "A", "valueFrom": {"resourceFieldRef": {"resource": "limits.cpu", "divisor": "1m"}}}],
                "ports": [{"containerPort": 80, "hostPort": 80}],
                "volumeMounts": [{"name": "v", "mountPath": "/v"}],
                "resources": {"limits": {"cpu": "1", "example.com/gpu": 1, "hugepages-2Mi": "2Mi"}},
                "livenessProbe": {"httpGet": {"port": "web"}},
                "lifecycle": {"preStop": {"sleep": {"seconds": 1}}},
                "securityContext": {"capabilities": {"add": ["ALL"]}, "appArmorProfile": {"type": "Unconfined"}},
            }
        ],
    },
}

texts = st.text(max_size=12) | st.sampled_from(
    ["web", "..", "1Gi", "-1", "Always", "metadata.labels['a']", "1e99", "é", ""]
)
scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(-2, 70000)
    | st.sampled_from([10**30, -(2**63) - 1, 2**64])
    | st.floats()
    | texts
)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    keys = value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    return [path, *(found for key in keys for found in places(value[key], (*path, key)))]


PLACES = [path for path in places(FULL) if path]


def check(data: bytes) -> None:
    found = decode_manifest(data, ORIGIN, ManifestRules("node"))
    result = [item for item in found if not isinstance(item, Remark)]
    assert result, "a file is a pod or has problems"
    kinds = {type(item) for item in result}
    assert kinds in ({core.Pod}, {ManifestProblem})
    for item in result:
        if isinstance(item, core.Pod):
            assert msgspec.json.decode(msgspec.json.encode(item), type=core.Pod) == item
        else:
            assert isinstance(item, ManifestProblem)
            assert item.reason and item.origin == ORIGIN.place


def test_the_pod_itself_is_nearly_good() -> None:
    result = decode_manifest(yaml.safe_dump(FULL).encode(), ORIGIN, ManifestRules("node"))
    assert {item.field_path for item in result if isinstance(item, ManifestProblem)} == {
        "metadata.ownerReferences.apiVersion",
        "metadata.ownerReferences.kind",
        "metadata.ownerReferences.uid",
    }


@settings(max_examples=400, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(PLACES), values), min_size=1, max_size=3), st.booleans())
def test_any_value_anywhere(changes: list[tuple[tuple[Any, ...], Any]], as_json: bool) -> None:
    pod = copy.deepcopy(FULL)
    del pod["metadata"]["ownerReferences"]
    for path, value in changes:
        at: Any = pod
        try:
            for step in path[:-1]:
                at = at[step]
            at[path[-1]] = value
        except (KeyError, IndexError, TypeError):
            continue
    try:
        data = msgspec.json.encode(pod) if as_json else yaml.safe_dump(pod, allow_unicode=True).encode()
    except OverflowError:  # JSON has no such number
        return
    check(data)


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=60) | st.text(alphabet="a:{}[]-&*!|>%@#'\"\n ,?", max_size=40).map(str.encode))
def test_any_bytes(data: bytes) -> None:
    check(data)
