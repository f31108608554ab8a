"""What pods and the node use: control groups, networks, file systems, read when somebody wants to know."""
