"""The container runtime: CRI (gRPC), services that containerd offers beside it, and the log files that it writes."""
