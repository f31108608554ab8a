"""Starts, stops, resizes and removes sandboxes and containers."""
