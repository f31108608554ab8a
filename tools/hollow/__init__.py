"""Hollow nodes: whole agents without machines and containers, for trying a control plane with many nodes."""
