"""The pod lifecycle event generator (PLEG): observes the pods of the container runtime. Writes the cell `Observed`."""
