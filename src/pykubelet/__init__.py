"""A Kubernetes node agent (kubelet) in Python."""

__version__ = "0.1.0"
