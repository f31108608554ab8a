"""Placement: assigns CPUs, devices and memory of NUMA nodes to containers, and aligns them (Topology Manager)."""
