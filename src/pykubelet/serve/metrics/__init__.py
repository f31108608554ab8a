"""Metrics and the Summary API, rendered from snapshots."""
