"""Observes the node: addresses, resources, and the state of the container runtime."""
