"""What monitors ask for: `/stats/summary` and the metrics, rendered by pure functions from what observe/stats saw."""
