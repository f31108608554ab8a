"""Reports the node to the API server: registration, status, Lease and CSINode."""
