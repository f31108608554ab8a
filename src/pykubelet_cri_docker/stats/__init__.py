"""Statistics of containers and sandboxes: CPU, memory, processes, network and writable layers."""
