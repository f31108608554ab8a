"""Resource usage of pods and the node, from cgroups, networks and file systems, measured on demand."""
