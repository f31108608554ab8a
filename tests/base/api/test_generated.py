"""The generated structs are what the generator makes of the types file, and were not edited by hand."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import re
import sys
from pathlib import Path
from types import ModuleType

import msgspec
import pytest

from pykubelet.base.api import auth, certificates, core, storage

ROOT = Path(__file__).resolve().parents[3]
OUT = ROOT / "src" / "pykubelet" / "base" / "api"
NAMES = ("core", "storage", "auth", "certificates")
MODULES: tuple[ModuleType, ...] = (core, storage, auth, certificates)


def load_generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("gen_api", ROOT / "tools" / "gen_api.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", NAMES)
def test_module_is_as_generated(name: str) -> None:
    text = (OUT / f"{name}.py").read_text()
    head, body = text.split('"""\n\n', 1)
    recorded = re.search(r"body sha256: (\w{64})", head)
    assert recorded is not None
    assert recorded[1] == hashlib.sha256(body.encode()).hexdigest(), "edited by hand: run tools/gen_api.py"
    generator = load_generator()
    assert generator.generate(generator.DEFAULT_TYPES)[name] == text, "stale: run tools/gen_api.py"


def test_the_types_are_in_the_checkout_and_reduced() -> None:
    """A generator whose input is elsewhere is one that contributors cannot run."""
    generator = load_generator()
    types = generator.DEFAULT_TYPES.read_text()
    assert generator.DEFAULT_TYPES.is_relative_to(ROOT)
    loaded = json.loads(types)
    document = {**loaded, "definitions": {**loaded["definitions"], "io.k8s.api.apps.v1.Deployment": {"type": "object"}}}
    document["definitions"]["io.k8s.api.core.v1.Pod"]["description"] = "A text."
    assert generator.render_types(generator.reduce_document(document, "v1.37.2", loaded["zeros"])) == types


@pytest.mark.parametrize("module", MODULES, ids=NAMES)
def test_every_kind_decodes_an_empty_object_and_comes_back(module: ModuleType) -> None:
    for kind in module.KINDS:
        empty = msgspec.json.decode(b"{}", type=kind)
        assert msgspec.json.decode(msgspec.json.encode(empty), type=kind) == empty


def test_required_scalars_and_lists_are_always_encoded() -> None:
    assert msgspec.json.encode(core.ContainerStatus(name="c")) == (
        b'{"image":"","imageID":"","name":"c","ready":false,"restartCount":0}'
    )
    assert msgspec.json.encode(core.PodSpec()) == b'{"containers":[]}'


def test_explicit_false_and_zero_survive() -> None:
    spec = msgspec.json.decode(b'{"containers":[],"hostPID":false,"priority":0}', type=core.PodSpec)
    assert (spec.hostPID, spec.priority, spec.hostIPC) == (False, 0, None)
    assert msgspec.json.encode(spec) == b'{"containers":[],"hostPID":false,"priority":0}'


def test_names_are_those_of_the_wire() -> None:
    status = core.PodStatus(podIP="10.0.0.1", hostIPs=(core.HostIP(ip="192.0.2.1"),))
    assert msgspec.json.encode(status) == b'{"hostIPs":[{"ip":"192.0.2.1"}],"podIP":"10.0.0.1"}'
    listed = msgspec.json.decode(b'{"continue":"abc"}', type=core.ListMeta)
    assert listed.continue_ == "abc"
    assert msgspec.json.encode(listed) == b'{"continue":"abc"}'


def test_secret_data_is_bytes_both_ways() -> None:
    secret = msgspec.json.decode(b'{"data":{"k":"aGVsbG8="}}', type=core.Secret)
    assert secret.data == {"k": b"hello"}
    assert b'"k":"aGVsbG8="' in msgspec.json.encode(secret)


def test_managed_fields_are_dropped() -> None:
    pod = msgspec.json.decode(b'{"metadata":{"name":"a","managedFields":[{"manager":"x"}]}}', type=core.Pod)
    assert pod.metadata == core.ObjectMeta(name="a")
