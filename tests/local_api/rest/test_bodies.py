"""Bodies of requests, as they are read."""

from __future__ import annotations

import msgspec

from pykubelet.net.http.wire import Request
from pykubelet_local_api.rest.formats import ReadBody, read_body


def body(text: str, media_type: str = "application/json") -> ReadBody:
    """What a body is read as."""
    request = Request("POST", "/", headers={"content-type": media_type})
    return read_body(request, text.encode(), "io.k8s.api.core.v1.ConfigMap")


def test_half_a_surrogate_pair_is_replaced_and_a_whole_one_stays() -> None:
    found = body(r'{"data": {"a": "x\ud800y", "\udfff": "\ud83d\ude00"}}').value
    assert found == {"data": {"a": "x\ufffdy", "\ufffd": "\U0001f600"}}
    assert msgspec.json.encode(found)


def test_duplicate_keys_are_kept_apart_by_the_format() -> None:
    assert body('{"data": {"a": "1", "a": "2"}}').duplicates == ("data.a",)
    assert body("data:\n  a: x\n  a: y\n", "application/yaml").yaml_remarks == ('line 3: key "a" already set in map',)
