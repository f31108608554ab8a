"""Registers plugins by the sockets that appear in the plugins_registry directory (KEP-595)."""
