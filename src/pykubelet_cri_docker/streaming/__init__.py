"""exec, attach and port-forward: the server of the URLs that the CRI calls of these names return."""
