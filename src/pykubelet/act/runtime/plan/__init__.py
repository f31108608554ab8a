"""Decides which containers of a pod to start, stop, restart or resize."""
