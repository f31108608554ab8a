from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from pykubelet.config.errors import ConfigError
from pykubelet.edges.plugins.credential_config import (
    ProviderConfig,
    TokenAttributes,
    load_providers,
    parse_providers,
)

HEAD = "apiVersion: kubelet.config.k8s.io/v1\nkind: CredentialProviderConfig\nproviders:\n"
ENTRY = """- name: ecr
  matchImages: ["*.dkr.ecr.*.amazonaws.com"]
  defaultCacheDuration: 12h
  apiVersion: credentialprovider.kubelet.k8s.io/v1
"""
TOKEN = """  tokenAttributes:
    serviceAccountTokenAudience: aud
    cacheType: Token
    requireServiceAccount: true
    requiredServiceAccountAnnotationKeys: [a]
    optionalServiceAccountAnnotationKeys: [b]
"""


def parse(text: str) -> tuple[ProviderConfig, ...]:
    return parse_providers(text.encode(), "c.yaml", "/bin-dir")


def problems(text: str) -> tuple[str, ...]:
    with pytest.raises(ConfigError) as caught:
        parse(text)
    return caught.value.problems


def test_a_full_entry() -> None:
    text = HEAD + ENTRY + "  args: [get, x]\n  env: [{name: A, value: b}]\n" + TOKEN
    assert parse(text) == (
        ProviderConfig(
            "ecr",
            "/bin-dir/ecr",
            ("*.dkr.ecr.*.amazonaws.com",),
            43200.0,
            "credentialprovider.kubelet.k8s.io/v1",
            ("get", "x"),
            (("A", "b"),),
            TokenAttributes("aud", True, "Token", ("a",), ("b",)),
        ),
    )


@pytest.mark.parametrize("version", ["v1", "v1beta1", "v1alpha1"])
def test_all_versions_are_read(version: str) -> None:
    text = (HEAD + ENTRY).replace("k8s.io/v1", f"k8s.io/{version}")
    assert parse(text)[0].api_version == f"credentialprovider.kubelet.k8s.io/{version}"


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("kubelet.config.k8s.io/v1\n", "kubelet.config.k8s.io/v2\n", 'apiVersion "kubelet.config.k8s.io/v2"'),
        ("kind: Cred", "kind: cred", 'kind "credentialProviderConfig"'),
        ("name: ecr", "name: ecr\n  colour: red", "Object contains unknown field `colour` - at `$.providers[0]`"),
        ("name: ecr", "name: 5", "Expected `str`, got `int` - at `$.providers[0].name`"),
        ("name: ecr", "name: a/b", "providers[0].name: Invalid value: \"a/b\": provider name cannot contain '/'"),
        ("name: ecr", "name: a b", 'providers[0].name: Invalid value: "a b": provider name cannot contain spaces'),
        ("name: ecr", "name: ..", "providers[0].name: Invalid value: \"..\": provider name cannot be '..'"),
        ("name: ecr", 'name: ""', "providers[0].name: Required value: name is required"),
        ('["*.dkr.ecr.*.amazonaws.com"]', "[]", "providers[0].matchImages: Required value: at least 1 item"),
        ('["*.dkr.ecr.*.amazonaws.com"]', '["a b"]', 'providers[0].matchImages: Invalid value: "a b"'),
        ("  defaultCacheDuration: 12h\n", "", "providers[0].defaultCacheDuration: Required value"),
        ("12h", "-1s", 'providers[0].defaultCacheDuration: Invalid value: "-1s": defaultCacheDuration must be greater'),
        (
            "12h",
            "soon",
            'providers[0].defaultCacheDuration: Invalid value: "soon": invalid duration "soon": must be like 30s, 1h30m or 500ms',
        ),
        ("  apiVersion: credentialprovider.kubelet.k8s.io/v1\n", "", "providers[0].apiVersion: Required value"),
        ("credentialprovider.kubelet.k8s.io/v1", "v9", 'providers[0].apiVersion: Unsupported value: "v9"'),
    ],
)
def test_each_mistake_is_named(old: str, new: str, problem: str) -> None:
    found = problems((HEAD + ENTRY).replace(old, new))
    assert len(found) == 1
    assert found[0].startswith("c.yaml: ")
    assert problem in found[0]


def test_no_providers_and_duplicates() -> None:
    assert problems(HEAD) == ("c.yaml: providers: Required value: at least 1 item in plugins is required",)
    assert problems(HEAD + ENTRY + ENTRY) == ('c.yaml: providers[1].name: Duplicate value: "ecr"',)


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        (
            "serviceAccountTokenAudience: aud",
            "serviceAccountTokenAudience: ''",
            "serviceAccountTokenAudience: Required",
        ),
        ("    cacheType: Token\n", "", "cacheType: Required value"),
        ("cacheType: Token", "cacheType: Always", 'cacheType: Unsupported value: "Always"'),
        ("    requireServiceAccount: true\n", "", "requireServiceAccount: Required value"),
        (
            "requireServiceAccount: true",
            "requireServiceAccount: false",
            "requiredServiceAccountAnnotationKeys: Forbidden",
        ),
        ("Keys: [b]", "Keys: [a]", "[a]: annotation keys cannot be both required and optional"),
    ],
)
def test_mistakes_in_token_attributes(old: str, new: str, problem: str) -> None:
    found = problems(HEAD + ENTRY + TOKEN.replace(old, new))
    assert len(found) == 1
    assert problem in found[0]


def test_token_attributes_need_v1() -> None:
    beta = ENTRY.replace("k8s.io/v1", "k8s.io/v1beta1")
    assert "tokenAttributes: Forbidden" in problems(HEAD + beta + TOKEN)[0]
    assert "tokenAttributes: Forbidden" in problems(HEAD.replace("/v1", "/v1beta1") + ENTRY + TOKEN)[0]


def test_token_attributes_need_their_gate() -> None:
    with pytest.raises(ConfigError) as refused:
        parse_providers((HEAD + ENTRY + TOKEN).encode(), "c.yaml", "/bin-dir", tokens=False)
    assert refused.value.problems == (
        "c.yaml: providers[0].tokenAttributes: Forbidden: tokenAttributes is not supported when "
        "KubeletServiceAccountTokenForCredentialProviders feature gate is disabled",
    )
    assert parse_providers((HEAD + ENTRY).encode(), "c.yaml", "/bin-dir", tokens=False)[0].token is None


def write_program(folder: Path, name: str, mode: int = 0o755) -> None:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text("#!/bin/sh\n")
    (folder / name).chmod(mode)


def test_one_file_is_loaded_with_its_hash(tmp_path: Path) -> None:
    write_program(tmp_path / "bin", "ecr")
    data = (HEAD + ENTRY).encode()
    (tmp_path / "config").write_bytes(data)
    loaded = load_providers(str(tmp_path / "config"), str(tmp_path / "bin"))
    assert [config.program for config in loaded.configs] == [f"{tmp_path}/bin/ecr"]
    assert loaded.config_hash == f"sha256:{hashlib.sha256(len(data).to_bytes(8, 'big') + data).hexdigest()}"


def test_a_directory_is_read_in_lexical_order_and_not_below(tmp_path: Path) -> None:
    for name in ("one", "two"):
        write_program(tmp_path / "bin", name)
    folder = tmp_path / "conf.d"
    (folder / "sub.yaml").mkdir(parents=True)
    (folder / "b.yml").write_text(HEAD + ENTRY.replace("ecr\n", "two\n"))
    (folder / "a.yaml").write_text(HEAD + ENTRY.replace("ecr\n", "one\n"))
    (folder / "notes.txt").write_text("not read")
    loaded = load_providers(str(folder), str(tmp_path / "bin"))
    assert [config.name for config in loaded.configs] == ["one", "two"]
    (folder / "c.json").write_text(HEAD + ENTRY.replace("ecr\n", "one\n"))
    with pytest.raises(ConfigError, match="duplicate provider name"):
        load_providers(str(folder), str(tmp_path / "bin"))


def test_what_is_missing_is_an_error_before_the_start(tmp_path: Path) -> None:
    (tmp_path / "config").write_text(HEAD + ENTRY)
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigError, match="did not exist"):
        load_providers(str(tmp_path / "config"), str(tmp_path / "bin"))
    (tmp_path / "bin").mkdir()
    with pytest.raises(ConfigError, match=r"plugin binary executable .*/bin/ecr did not exist"):
        load_providers(str(tmp_path / "config"), str(tmp_path / "bin"))
    with pytest.raises(ConfigError, match="no such file or directory"):
        load_providers(str(tmp_path / "none"), str(tmp_path / "bin"))
    with pytest.raises(ConfigError, match="no configuration files found"):
        load_providers(str(tmp_path / "empty"), str(tmp_path / "bin"))
