"""The ground floor: no I/O, knows nothing above it."""
