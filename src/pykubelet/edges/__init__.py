"""Adapters to the outside of the process: container runtime, API server, plugins, probed containers, the machine."""
