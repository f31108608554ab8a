import pytest

from pykubelet.base.model.cpu import cpu_quota_us, cpu_shares


@pytest.mark.parametrize(
    ("milli", "shares"),
    [(0, 2), (1, 2), (2, 2), (100, 102), (1000, 1024), (256_000, 262_144), (256_001, 262_144), (10**9, 262_144)],
)
def test_shares_stay_within_the_kernels_bounds(milli: int, shares: int) -> None:
    assert cpu_shares(milli) == shares


@pytest.mark.parametrize(
    ("milli", "period", "quota"), [(0, 100_000, 0), (1, 100_000, 1000), (250, 100_000, 25_000), (1500, 10_000, 15_000)]
)
def test_quota_is_unset_or_at_least_a_millisecond(milli: int, period: int, quota: int) -> None:
    assert cpu_quota_us(milli, period) == quota
