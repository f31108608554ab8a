from collections.abc import Sequence

from pykubelet.extension import EvictionCandidate, Extension

MI = 1 << 20


class FairEviction(Extension):
    name, api = "fair-eviction", "1.0"

    def rank_for_eviction(
        self, candidates: Sequence[EvictionCandidate], signal: str
    ) -> Sequence[EvictionCandidate] | None:
        return sorted(candidates, key=_rank) if signal == "memory.available" else None


def _rank(candidate: EvictionCandidate) -> tuple[int, bool, float]:
    pod, usage = candidate.pod, candidate.usage
    if usage is None or usage.memory is None:
        return pod.priority, True, 0.0
    return pod.priority, False, -usage.memory / max(MI, pod.requests.get("memory", 0))
