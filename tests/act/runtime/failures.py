"""What a step of a start refuses, as reason and message."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import ParamSpec

import pytest

from pykubelet.act.runtime.start_error import ContainerStartError
from pykubelet.base.model.lifecycle import StartError

P = ParamSpec("P")


def refusal(step: Callable[P, object], *args: P.args, **kwargs: P.kwargs) -> StartError:
    """The error of a step that must fail."""
    with pytest.raises(ContainerStartError) as caught:
        step(*args, **kwargs)
    return caught.value.value


async def refusal_of(step: Awaitable[object]) -> StartError:
    """The error of an awaited step that must fail."""
    with pytest.raises(ContainerStartError) as caught:
        await step
    return caught.value.value
