"""The reference pages of the documentation site have what the code has."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

TOOL = Path(__file__).parents[2] / "tools" / "gen_docs.py"


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("gen_docs", TOOL)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_pages_name_flags_fields_endpoints_and_events(tool: ModuleType) -> None:
    assert "| `--node-ip` | node-ip |  | " in tool.flags_page()
    assert "| `port` | int | `10250` | as in Kubernetes 1.36 |" in tool.fields_page()
    assert "| `authentication.webhook.cacheTTL` | duration |" in tool.fields_page()
    assert "| `/exec/*` |" in tool.endpoints_page()
    assert "- `BackOff`\n" in tool.events_page()


def test_metrics_of_the_registry_and_gauges_of_the_cells_are_listed(tool: ModuleType) -> None:
    page = tool.metrics_page()
    assert "| `kubelet_desired_pods` | gauge | /metrics |" in page
    assert "| `prober_probe_total` | counter | /metrics/probes |" in page
    assert "| `kubelet_runtime_operations_total` | counter | /metrics |" in page


def test_the_site_has_every_page_that_its_navigation_names(tool: ModuleType, tmp_path: Path) -> None:
    tool.build(tmp_path / "pages")
    named = [line.rpartition(": ")[2] for line in (TOOL.parents[1] / "mkdocs.yml").read_text().splitlines()]
    pages = [name for name in named if name.endswith(".md")]
    assert len(pages) > 12
    assert [name for name in pages if not (tmp_path / "pages" / name).exists()] == []
