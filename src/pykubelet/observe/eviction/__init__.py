"""Node-pressure eviction: measures signals, sets the pressure conditions, chooses pods to evict."""
