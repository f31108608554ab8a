"""Drivers and readers for cgroups v1 and v2, directly and through systemd."""
