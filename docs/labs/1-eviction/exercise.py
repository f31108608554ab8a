from collections.abc import Sequence

from pykubelet.extension import EvictionCandidate, Extension


class FairEviction(Extension):
    name, api = "fair-eviction", "1.0"

    def rank_for_eviction(
        self, candidates: Sequence[EvictionCandidate], signal: str
    ) -> Sequence[EvictionCandidate] | None:
        # candidate.usage.memory: bytes in use; candidate.pod.requests["memory"]: bytes requested; candidate.pod.priority
        return candidates
