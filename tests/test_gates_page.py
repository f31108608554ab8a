from __future__ import annotations

from gen_gates import PAGE, page

from pykubelet.config.gates import all_gates


def test_the_page_of_feature_gates_is_current() -> None:
    text = PAGE.read_text()
    assert page(text) == text, "run .venv/bin/python tools/gen_gates.py"
    assert [name for name in all_gates() if f"| `{name}` |" not in text] == []
