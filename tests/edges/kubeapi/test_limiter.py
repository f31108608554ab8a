from __future__ import annotations

from pykubelet.base.kit.clock import ManualClock
from pykubelet.edges.kubeapi.limiter import Limiter


def test_a_burst_is_free_and_then_each_waits_longer() -> None:
    limiter = Limiter(10, 3, ManualClock())
    assert [round(limiter.delay_s(), 3) for _ in range(5)] == [0.0, 0.0, 0.0, 0.1, 0.2]


def test_rest_fills_the_bucket_again_but_not_beyond_the_burst() -> None:
    clock = ManualClock()
    limiter = Limiter(10, 3, clock)
    for _ in range(3):
        limiter.delay_s()
    clock.advance(0.1)
    assert [round(limiter.delay_s(), 3) for _ in range(2)] == [0.0, 0.1]
    clock.advance(3600)
    assert [round(limiter.delay_s(), 3) for _ in range(4)] == [0.0, 0.0, 0.0, 0.1]


def test_no_limit() -> None:
    limiter = Limiter(0, 1, ManualClock())
    assert [limiter.delay_s() for _ in range(1000)] == [0.0] * 1000
