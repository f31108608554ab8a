"""Subresources that the agent answers: logs, exec, attach, port-forward and proxies."""
