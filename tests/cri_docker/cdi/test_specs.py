"""Which files are CDI specs."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pykubelet_cri_docker.cdi.specs import CdiError, read_spec


def spec(**changes: object) -> dict[str, object]:
    return {"cdiVersion": "0.6.0", "kind": "vendor.com/gpu", "devices": [{"name": "0"}], **changes}


def with_edits(**edits: object) -> dict[str, object]:
    return spec(containerEdits=edits)


def test_a_file_is_json_or_yaml() -> None:
    node = {"path": "/dev/a", "hostPath": "/dev/b", "type": "c", "fileMode": 438, "uid": 0}
    edits = {"env": ["A=b"], "deviceNodes": [node], "additionalGids": [5]}
    found = read_spec(json.dumps(spec(devices=[{"name": "0", "containerEdits": edits}])).encode())
    (device,) = found.devices
    (shown,) = device.container_edits.device_nodes
    assert (found.kind, device.name, shown.on_host, shown.file_mode) == ("vendor.com/gpu", "0", "/dev/b", 0o666)
    text = b"cdiVersion: 1.0.0\nkind: vendor.com/gpu\ndevices:\n- name: all\n  containerEdits: {env: [A=b]}\n"
    assert read_spec(text).devices[0].container_edits.env == ("A=b",)


@pytest.mark.parametrize(
    ("changed", "problem"),
    [
        ({"cdiVersion": "2.0.0"}, "unknown cdiVersion"),
        ({"kind": "gpu"}, "invalid kind"),
        ({"kind": "../etc"}, "invalid kind"),
        ({"devices": []}, "has no devices"),
        ({"devices": [{"name": "a/b"}]}, "invalid device name"),
        ({"devices": [{"name": "a"}, {"name": "a"}]}, "has a device twice"),
        ({"new": 1}, "unknown field"),
        ({"devices": [{"name": "a", "containerEdits": {"new": 1}}]}, "unknown field"),
        (with_edits(env=["=b"]), "invalid env"),
        (with_edits(deviceNodes=[{"path": "dev/a"}]), "no absolute path"),
        (with_edits(deviceNodes=[{"path": "/dev/a", "hostPath": "a\0"}]), "no absolute path"),
        (with_edits(deviceNodes=[{"path": "/dev/a", "permissions": "x"}]), "invalid permissions"),
        (with_edits(mounts=[{"hostPath": "/a"}]), "missing required field"),
        (with_edits(mounts=[{"hostPath": "/a", "containerPath": "b"}]), "no absolute path"),
        (with_edits(additionalGids=[-1]), "out of range"),
    ],
)
def test_any_other_file_is_refused(changed: dict[str, Any], problem: str) -> None:
    with pytest.raises(CdiError, match=problem):
        read_spec(json.dumps({**spec(), **changed}).encode())


@pytest.mark.parametrize("data", [b"", b"[]", b"{", b"\xff", b"a: [" * 9999, b"cdiVersion: 0.6.0\nkind: a/b\n"])
def test_what_is_no_spec_is_refused(data: bytes) -> None:
    with pytest.raises(CdiError):
        read_spec(data)
