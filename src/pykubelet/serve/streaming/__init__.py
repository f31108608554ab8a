"""exec, attach and port-forward."""
