"""Probes of containers over the network: HTTP, TCP, gRPC health."""
