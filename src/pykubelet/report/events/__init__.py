"""Handles Events: logs them, keeps the recent ones of each pod and of the node, and sends them to the API server."""
