"""Kernel interfaces other than cgroups: /proc, sysctls, network interfaces, OOM scores."""
