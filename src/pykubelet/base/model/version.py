"""The version of Kubernetes that this agent is compatible with, and its own as build metadata of it. Cheap to import."""

from __future__ import annotations

from pykubelet import __version__

KUBERNETES = "v1.36.2"
FULL = f"{KUBERNETES}+pykubelet.{__version__}"
