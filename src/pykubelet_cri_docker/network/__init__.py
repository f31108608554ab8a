"""Pod networks by CNI plugins: the part of a container runtime in the CNI specification, 1.1.0 and older."""
