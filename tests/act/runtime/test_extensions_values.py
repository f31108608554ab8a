"""Where extensions are asked for the values of a container: at its creation, always on the event loop's thread."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path

import pytest
from act.pods.scenes import IMAGE, container, pod
from act.runtime.hands import hands

from pykubelet.act.runtime.lifecycle.start import SandboxEnded
from pykubelet.act.runtime.render.context import ContainerContext
from pykubelet.act.runtime.render.render_config import HEAVY
from pykubelet.base.api.core import Pod
from pykubelet.base.kit.values import replace

pytestmark = pytest.mark.virtual_time


@pytest.mark.parametrize("variables", [1, HEAVY])
async def test_it_is_asked_in_the_main_thread(variables: int, tmp_path: Path) -> None:
    """A large configuration is rendered in another one, where the limits of extensions do not work."""
    threads: list[threading.Thread] = []

    def ask(of: Pod, name: str, values: Mapping[str, str], is_new: bool) -> Mapping[str, str]:
        assert (name, values["memory.max"], is_new) == ("app", "max", True)
        threads.append(threading.current_thread())
        return {"memory.max": "12345678"}

    app = container("app", env=[{"name": f"V{n}", "value": "x"} for n in range(variables)])
    async with hands(tmp_path) as h:
        of = pod(app)
        home = await h.sandbox(of)
        settings = replace(h.sandboxes.settings(), ask_extensions=ask)
        created = await h.starter.create(of, app, home, settings, ContainerContext(image_ref=IMAGE))
        assert not isinstance(created, SandboxEnded)
        assert h.fake.state.need(created.id).config.linux.resources.memory_limit_in_bytes == 12345678
    assert threads == [threading.main_thread()]
