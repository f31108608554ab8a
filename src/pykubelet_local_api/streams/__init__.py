"""Subresources that the agent or a pod answers: log, exec, attach, portforward and proxy."""
