"""Devices of device plugins: which container has which, their state file, and the calls to the plugins."""
