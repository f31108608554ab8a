"""The exec protocol with real programs (shell scripts)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pykubelet.base.kit.values import replace
from pykubelet.edges.plugins.credential_config import PLUGIN_VERSIONS, ProviderConfig
from pykubelet.edges.plugins.credential_provider import (
    CacheKeyType,
    ProviderAnswer,
    ProviderError,
    parse_answer,
    render_request,
    run_provider,
)

V1 = PLUGIN_VERSIONS[0]
GOOD = {
    "kind": "CredentialProviderResponse",
    "apiVersion": V1,
    "cacheKeyType": "Registry",
    "cacheDuration": "1h30m",
    "auth": {"a.example": {"username": "u", "password": "hunter2"}},
}


def program(tmp_path: Path, body: str, *args: str, **env: str) -> ProviderConfig:
    path = tmp_path / "plugin"
    path.write_text("#!/bin/sh\n" + body)
    path.chmod(0o755)
    return ProviderConfig("plugin", str(path), ("a.example",), 0.0, V1, args, tuple(env.items()))


def answer(**changes: Any) -> bytes:
    return json.dumps({**GOOD, **changes}).encode()


async def test_request_and_answer(tmp_path: Path) -> None:
    (tmp_path / "answer").write_bytes(answer())
    config = program(
        tmp_path,
        'cat >"$OUT/request"; echo "$1 $2 $PATH" >"$OUT/call"; cat "$OUT/answer"',
        "get",
        "x",
        OUT=str(tmp_path),
    )
    found = await run_provider(config, "a.example/app", "tok", {"k": "v"})
    assert found == ProviderAnswer(CacheKeyType.REGISTRY, {"a.example": ("u", "hunter2")}, 5400.0)
    assert json.loads((tmp_path / "request").read_text()) == {
        "kind": "CredentialProviderRequest",
        "apiVersion": V1,
        "image": "a.example/app",
        "serviceAccountToken": "tok",
        "serviceAccountAnnotations": {"k": "v"},
    }
    assert (tmp_path / "call").read_text().startswith("get x /")
    assert "hunter2" not in repr(found)


@pytest.mark.parametrize("version", PLUGIN_VERSIONS[1:])
def test_older_versions_know_no_service_accounts(version: str) -> None:
    assert json.loads(render_request(version, "a", "tok", {"k": "v"})) == {
        "kind": "CredentialProviderRequest",
        "apiVersion": version,
        "image": "a",
    }


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "the response is not JSON"),
        (b"hunter2", "the response is not JSON"),
        (b"[]", "the response is malformed"),
        (answer(auth={"a": {"password": 5}}), "the response is malformed"),
        (answer(kind="Other"), "expected kind CredentialProviderResponse, got kind Other"),
        (
            answer(apiVersion=PLUGIN_VERSIONS[1]),
            f"did not match expected apiVersion:{V1}, actual apiVersion:{PLUGIN_VERSIONS[1]}",
        ),
        (answer(cacheKeyType="Pod"), 'did not return a valid cacheKeyType: "Pod"'),
        (answer(cacheDuration="soon"), 'cacheDuration: invalid duration "soon": must be like 30s, 1h30m or 500ms'),
    ],
)
def test_a_bad_answer_is_refused_without_quoting_it(data: bytes, why: str) -> None:
    with pytest.raises(ProviderError) as caught:
        parse_answer(data, V1)
    assert why in str(caught.value)
    assert "hunter2" not in str(caught.value)


def test_no_credentials_is_an_answer() -> None:
    assert parse_answer(answer(auth=None, cacheDuration=None), V1) == ProviderAnswer(CacheKeyType.REGISTRY, {}, None)


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ("echo no login >&2; exit 3", "exit status 3: no login"),
        ("kill -9 $$", "signal 9"),
        ("echo hunter2", "the response is not JSON"),
        ("head -c 2000000 /dev/zero", "the response is larger than 1048576 bytes"),
    ],
)
async def test_a_failing_program_is_named_in_the_error(tmp_path: Path, body: str, why: str) -> None:
    with pytest.raises(ProviderError) as caught:
        await run_provider(program(tmp_path, body), "a.example/app")
    text = str(caught.value)
    assert text == f"error execing credential provider plugin plugin for image a.example/app: {why}"


async def test_a_program_that_is_gone(tmp_path: Path) -> None:
    config = replace(program(tmp_path, ""), program=str(tmp_path / "gone"))
    with pytest.raises(ProviderError, match="no such file or directory"):
        await run_provider(config, "a.example/app")
